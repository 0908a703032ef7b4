"""Options and settings: their names, and what stands in pyproject.toml."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Commands write `.kvfuzz/` where they are run."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)


def test_settings_may_stand_in_pyproject(run):
    """At the top for every command, in a table for one; the command line wins."""
    Path("pyproject.toml").write_text(
        "[tool.kvfuzz]\nseed = 11\nexamples = 9\n[tool.kvfuzz.fuzz]\nexamples = 6\n"
    )
    assert re.search(r"[67] cases", run("fuzz", "zoo:rope")[1])  # one may be drawn again
    _, out, _ = run("fuzz", "zoo:rope", "--examples", 4)
    assert "4 cases" in out
    assert "seed 11" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.kvfuzz]\nexampels = 3\n", "no setting 'exampels' (did you mean examples or"),
        ("[tool.kvfuzz.fuz]\nseed = 3\n", "no setting 'fuz' (did you mean fuzz?)"),
        (
            "[tool.kvfuzz.fuzz]\nmatrix = true\n",
            "[tool.kvfuzz.fuzz] in pyproject.toml has no setting",
        ),
        ("[tool.kvfuzz]\nexamples = 'many'\n", "'many' is not a valid integer"),
        ("[tool\n", "cannot read pyproject.toml"),
        ("[tool]\nkvfuzz = 3\n", "[tool.kvfuzz] in pyproject.toml should be a table, got 3"),
        ("tool = 3\n", "[tool] in pyproject.toml should be a table, got 3"),
        ("[tool.kvfuzz]\nfuzz = 3\n", "[tool.kvfuzz.fuzz] in pyproject.toml should be a table"),
        ("[tool.kvfuzz]\nexamples = 'many'\n", "setting 'examples' in pyproject.toml: 'many'"),
        ("[tool.kvfuzz]\nexamples = 2.5\n", "setting 'examples' in pyproject.toml: '2.5'"),
        ("[tool.kvfuzz]\nworkers = 0\n", "setting 'workers' in pyproject.toml: '0'"),
        (
            "[tool.kvfuzz]\nexamples = [1, 2]\n",
            "setting 'examples' of [tool.kvfuzz] in pyproject.toml should be a number or a string, "
            "got [1, 2]",
        ),
        ("[tool.kvfuzz]\nexamples = {a = 1}\n", "a number or a string, got {'a': 1}"),
        ("[tool.kvfuzz.fuzz]\nexamples = true\n", "'examples' of [tool.kvfuzz.fuzz]"),
        ("[tool.kvfuzz]\nexamples = true\n", "should be a number or a string, got true"),
        ("[tool.kvfuzz]\nmatrix = 'yes'\n", "should be true or false, got 'yes'"),
        ("[tool.kvfuzz]\nmutant = [['a']]\n", "should be a number or a string, got ['a']"),
        ("[tool.kvfuzz]\nn = 2\n", "no setting 'n' (did you mean workers?)"),
    ],
)
def test_bad_settings_are_refused_in_one_line(run, text, message):
    """A misspelt setting would otherwise silently do nothing."""
    Path("pyproject.toml").write_text(text)
    code, _, err = run("fuzz", "zoo")
    assert code == 2
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("operators", ["'norm'", "['norm']"])
def test_an_option_that_may_be_repeated_takes_a_list(run, operators):
    """Or one value, which is no list of its letters."""
    Path("pyproject.toml").write_text(f"[tool.kvfuzz.mutants]\noperator = {operators}\n")
    assert run("mutants", "--json", "m.json")[0] == 0
    listed = json.loads(Path("m.json").read_text())["mutants"]
    assert {m["operator"] for m in listed} == {"norm"}


@pytest.mark.parametrize(
    "former",
    [
        ("--time", "1e9", "--length", "2", "--expect", "known.json"),
        ("--seconds", "1e9", "--max-length", "2", "--expected", "known.json"),
    ],
)
def test_an_option_is_known_by_its_former_name_too(run, former):
    """On the command line; `--help` shows the present one alone."""
    Path("known.json").write_text("[]")
    found = run("fuzz", "zoo:rope", "--examples", 4, "--seed", 1, *former, "--json", "a.json")
    assert found[0] == 0
    case = ["fuzz", "zoo:rope", "--examples", 4, "--seed", 1, "--max-length", 2, "--json", "b.json"]
    assert run(*case)[0] == 0
    first, again = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert first["rows"] == again["rows"] > 0
    for command in ("fuzz", "score"):
        text = run(command, "--help")[1]
        assert "--seconds" in text
        assert "--expected" in text
        assert not re.search(r"--(time|length|expect)\b", text)


@pytest.mark.parametrize("option", ["--pairs", "--by"])
def test_a_removed_option_says_what_to_do_instead(run, option):
    """On the command line and in pyproject.toml; `--help` does not show it."""
    refused = run("score", "zoo", option, "1")
    assert refused[:2] == (2, "")
    assert f"no {option} any more: benchmarks/" in refused[2]
    Path("pyproject.toml").write_text(f"[tool.kvfuzz.score]\n{option.lstrip('-')} = 1\n")
    assert run("score", "zoo") == refused
    assert option not in run("score", "--help")[1]


def test_a_setting_is_known_by_its_former_name_too(run):
    """In pyproject.toml; the present name wins where both are given."""
    Path("pyproject.toml").write_text(
        "[tool.kvfuzz]\ntime = 1e9\nexamples = 4\n[tool.kvfuzz.fuzz]\nlength = 99\nmax_length = 2\n"
    )
    assert run("fuzz", "zoo:rope", "--seed", 1, "--json", "a.json")[0] == 0
    Path("pyproject.toml").write_text("[tool.kvfuzz]\nlength = 'x'\n")
    code, _, err = run("fuzz", "zoo")
    assert (code, err) == (
        2, "kvfuzz: setting 'max-length' in pyproject.toml: 'x' is not a valid integer range.\n"
    )  # fmt: skip
