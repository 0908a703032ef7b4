"""The JSON of a score is as its schema says, and the documents say what the schema does."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mutants.mutant import STATES
from tests.mutants.scores import made, no_score, one_of_each_state, result

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
SCHEMA: dict[str, Any] = json.loads(
    files("mutants.report").joinpath("score.schema.json").read_text()
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("more", [(), ("--matrix", "--no-shrink")])
def test_what_the_command_writes_is_valid(run, tmp_path, validator, more) -> None:
    """Kills, a survivor, an equivalent mutant, laws of infinite excess, witnesses, maps."""
    ids = (
        "append.prepends",
        "causality.last_layer_sees_the_next_token",
        "padding.on_the_right_is_taken_for_text",
        "reuse.reset_leaves_the_blocks",
    )
    wanted = [word for name in ids for word in ("--mutant", name)]
    file = tmp_path / "score.json"
    code, _, error = run(
        "score", "zoo", *wanted, "--examples", 6, "--seed", 1, "--json", file,
        "--folder", tmp_path, *more,
    )  # fmt: skip
    assert code in (0, 1), error
    written = json.loads(file.read_text())
    assert [each.message for each in validator.iter_errors(written)] == []
    assert (written["by_schedule"], written["unkept"]) == ({}, [])
    assert any(each["excess"] == "inf" for each in written["mutants"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "1 was expected"),
        ({"score": 101}, "101 is greater than the maximum"),
        ({"verdict": "green"}, "'green' is not one of"),
        ({"extra": 1}, "Additional properties are not allowed"),
        ({"mutants": [{"id": "a.b"}]}, "'operator' is a required property"),
    ],
)
def test_what_is_wrong_is_not_valid(validator, change, message) -> None:
    """The test above can fail."""
    environment = {"kvfuzz": "1", "torch": "2", "hypothesis": "6", "python": "3", "platform": "x"}
    environment |= {"threads": 1, "device": "cpu", "backend": "x", "workers": 1}
    good = json.loads(
        json.dumps(made([result("append.prepends")], environment=environment).to_json())
    )
    assert list(validator.iter_errors(good)) == []
    found = [each.message for each in validator.iter_errors({**good, **change})]
    assert any(message in each for each in found), found


def test_the_schema_knows_every_state() -> None:
    """A new state of mutants is a new word of the format."""
    states = SCHEMA["$defs"]["result"]["properties"]["state"]["enum"]
    assert set(STATES) <= set(states)
    assert {each["state"] for each in one_of_each_state().to_json()["mutants"]} <= set(states)


def test_the_document_describes_every_field_as_the_schema_does() -> None:
    """And no field that there is not."""
    for fields in (SCHEMA["properties"], SCHEMA["$defs"]["result"]["properties"]):
        for name, field in fields.items():
            assert f"| `{name}` | {field['description']} |\n" in DOCUMENT
    listed = re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    known = [*SCHEMA["properties"], *SCHEMA["$defs"]["result"]["properties"]]
    assert listed == known


def test_the_document_tells_every_state() -> None:
    """One row each."""
    for state in SCHEMA["$defs"]["result"]["properties"]["state"]["enum"]:
        assert f"\n| {state.replace('_', ' ')} | " in DOCUMENT


def test_a_run_without_a_score_says_why() -> None:
    """Null is no number, and the reason is there."""
    written = no_score("the unmutated zoo diverges").to_json()
    assert (written["score"], written["reason"]) == (None, "the unmutated zoo diverges")
