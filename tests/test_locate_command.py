"""`kvfuzz locate` on the command line, and the sites of mutants."""

import json
from dataclasses import replace

import pytest

import kvfuzz
from kvfuzz.case.counterexample import make_counterexample
from kvfuzz.search.replay import locate_file, replay
from kvfuzz.subjects.loading import load
from mutants.library.registry import find, library
from tests.locate_cases import PLAIN
from tests.subjects import faulty_decoders
from tests.subjects.faulty_decoders import line_of

LOCATED = [
    fault.id
    for fault in library().values()
    if fault.law == "agreement" and not fault.placebo and not fault.equivalent
]


@pytest.mark.parametrize("mutant", LOCATED[::16])
def test_mutants_are_located_at_their_site(mutant):
    """A sample; `tests/mutants/test_library.py` has the whole library."""
    fault = find(mutant)
    factory = load("zoo")
    faulty = replace(factory, build=lambda *a: fault.into(factory.build(*a), a[1]))
    assert kvfuzz.locate(faulty, fault.witness).first.site == fault.site


SUBJECT = "tests.subjects.faulty_decoders:WritesEarlyDecoder"
CLEAN = "tests.subjects.decoders:AllocatedDecoder"
FIRST = {
    "step", "row", "position", "site", "layer", "module", "file", "line", "function",
    "difference", "allowed",
}  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """A counterexample that is small, since nothing has to be hunted for."""
    verdict = kvfuzz.check(faulty_decoders.WritesEarlyDecoder(), PLAIN)
    found = make_counterexample(SUBJECT, PLAIN, verdict, None, "cpu")
    return found.save(tmp_path)


def test_the_command_says_where_and_writes_it(run, saved, tmp_path):
    """Exit code 0; the text has the line, the JSON all that is known, the page the map."""
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    code, text, err = run("locate", saved, "--json", out, "--html", page)
    assert (code, err) == (0, f"importing subject {SUBJECT}\n")
    assert text.startswith("LOCATED ")
    line = line_of(faulty_decoders.WritesOneTooEarly)
    assert f"tests/subjects/faulty_decoders.py:{line}" in text
    assert "Look first at" in text or "look first at" in text
    data = json.loads(out.read_text())
    assert set(data) >= {"first", "cause", "nearest", "latent", "suspect"}
    assert set(data["first"]) >= FIRST
    first = data["first"]
    assert (first["step"], first["site"], first["layer"]) == (1, "0.cache", 0)
    assert (first["line"], first["module"]) == (line, "layers.0.mixer")
    assert first["difference"] > first["allowed"]
    assert (data["cause"], data["suspect"], data["latent"]) == ("append slot", "cached", [])
    assert data["nearest"] == []  # kept for one release, always empty
    assert f"faulty_decoders.py:{line}" in page.read_text()


def test_the_map_can_be_left_out(run, saved):
    """Fewer lines, and the same first one."""
    _, drawn, _ = run("locate", saved)
    _, bare, _ = run("locate", saved, "--no-map")
    drawn, bare = (
        {line for line in text.splitlines() if "cost" not in line} for text in (drawn, bare)
    )
    assert bare < drawn
    assert any("X first divergence" in line for line in drawn - bare)


def test_a_case_that_agrees_now_has_no_first(run, saved, tmp_path):
    """Exit code 3, and null in the JSON."""
    out = tmp_path / "out.json"
    code, _, _ = run("locate", saved, "--subject", CLEAN, "--json", out)
    assert code == 3
    assert json.loads(out.read_text())["first"] is None


def test_a_latent_state_counts_with_strict_alone(run, tmp_path):
    """Exit code 3 with the state named, and 0 with --strict."""
    name = "tests.subjects.faulty_decoders:Undoes"
    verdict = kvfuzz.check(faulty_decoders.WritesEarlyDecoder(), PLAIN)
    path = make_counterexample(name, PLAIN, verdict, None, "cpu").save(tmp_path)
    code, text, _ = run("locate", path, "--no-map")
    assert code == 3
    assert "MLP of layer 1" in text
    code, text, _ = run("locate", path, "--no-map", "--strict")
    assert code == 0
    assert "return 2 * x if later else x" in text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', None])
def test_a_bad_file_is_refused_in_one_line(run, tmp_path, text):
    """Exit code 2, and no traceback."""
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    code, out, err = run("locate", path)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "bad.json" in err


def test_a_counterexample_of_another_law_has_a_note(run, tmp_path):
    """The cached and the uncached path agree: exit code 3."""
    verdict = replace(kvfuzz.check(faulty_decoders.WritesEarlyDecoder(), PLAIN), law="causality")
    path = make_counterexample(CLEAN, PLAIN, verdict, None, "cpu").save(tmp_path)
    code, text, _ = run("locate", path)
    assert code == 3
    assert "breaks the law causality" in text


def test_a_hunt_locates_unless_told_otherwise(run, tmp_path):
    """`--no-locate` says that it diverged, and no more."""
    arguments = ("fuzz", SUBJECT, "--seed", 0, "--examples", 3)
    code, located, _ = run(*arguments, "--folder", tmp_path)
    assert code == 1
    assert "first divergence: " in located
    code, bare, _ = run(*arguments, "--folder", tmp_path / "other", "--no-locate")
    assert code == 1
    assert "DIVERGED" in bare
    assert "first divergence" not in bare


def test_a_replay_locates_as_the_command_does(saved):
    """In float64, though the counterexample is in float32: the same state, line and allowance."""
    replayed = replay(saved).explanation.location
    _, case, located = locate_file(saved)
    assert case.dtype == "float32"
    assert located.first.allowed < 1e-9
    assert replayed.first == located.first
