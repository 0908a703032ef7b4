"""Faults and packages that misbehave: they hang, swallow, exit, leave things changed."""

import sys
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from kvfuzz.case.case import Case
from kvfuzz.cli.main import main
from kvfuzz.errors import UsageError
from kvfuzz.search.judge import KnownReference
from kvfuzz.subjects.loading import Options
from mutants.campaign import time_limit as limits
from mutants.campaign.campaign import Limits
from mutants.campaign.cases import prepare_cases
from mutants.campaign.result import Result
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.campaign.score import score
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.campaign.witness import add_witness
from mutants.library.registry import find, library, select
from mutants.mutant import Mutant, steps
from mutants.report import html, text
from mutants.report.report import Report
from tests.mutants.campaigns import KILLED, fault_text, install, path_with

HEAD = (
    "import sys, time\nfrom kvfuzz.subjects.zoo import cached\n"
    "from mutants.mutant import mutant, steps\n"
)
MORE_PROCESSES = pytest.mark.full(reason="the same promise with more processes, two seconds each")


def made(fault):
    """A mutant of the tests' own, in the place of `store`."""
    target = ("kvfuzz.subjects.zoo.cached:store",)
    return Mutant("test", fault.__name__, "A fault.", target, fault, None, steps(1))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package that offers mutants, also for worker processes."""

    def installing(name, source):
        install(tmp_path, name, source)
        library.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
    yield installing
    library.cache_clear()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def prepared():
    """Twenty cases of the zoo, half a second for each mutant."""
    return prepare_cases("zoo", Options(), 20, 3, limits=Limits(seconds=0.5))


def hangs_below(least):
    """A fault that hangs on a first step shorter than `least`, and drops the newest otherwise."""

    def hangs(real):
        calls = []

        def store(cache, layer, key, value):
            calls.append(layer)
            while len(calls) == 1 and key.shape[2] < least:
                time.sleep(0.01)
            real(cache, layer, key[:, :, :-1], value[:, :, :-1])

        return store

    return made(hangs)


def killed_by(prepared, index):
    case = prepared.campaign.cases[index]
    return case, Result("test.hangs", "test", "killed", killed_by=index, kills=(index,), ran=1)


def long_case(prepared):
    """The index of a case that begins with a long step."""
    firsts = [case.schedule[0] if case.is_simple else 0 for case in prepared.campaign.cases]
    return firsts.index(max(firsts))


def test_shrinking_has_the_time_of_a_mutant(prepared):
    """A kill that hangs while it is shrunk keeps the case that killed it as its witness."""
    limited = replace(prepared.campaign, limits=Limits(seconds=3.0), shrink=True)
    longer = replace(prepared, campaign=limited)
    case, result = killed_by(prepared, long_case(prepared))
    started = time.monotonic()
    seen = add_witness(longer, hangs_below(case.schedule[0]), result)
    assert time.monotonic() - started < 60
    assert (seen.state, seen.reason) == ("killed", None)
    kept = Case.from_json(seen.witness["case"])
    assert kept.schedule[0] == case.schedule[0]
    assert {*kept.tokens} <= {row[: kept.length] for row in case.tokens}
    assert seen.witness["verdict"]["status"] == "diverged"


@pytest.mark.parametrize("shrink", [True, False])
def test_a_witness_that_cannot_be_told_in_time_is_left_out(prepared, shrink):
    """The mutant is killed all the same, with the reason why there is no witness."""
    quick = replace(prepared, campaign=replace(prepared.campaign, shrink=shrink))
    seen = add_witness(quick, hangs_below(1000), killed_by(prepared, 0)[1])
    assert (seen.state, seen.witness) == ("killed", None)
    assert seen.reason == "no witness: over 0.5 s"


def test_the_alarm_rings_again(prepared, monkeypatch):
    """A fault that swallows it twice does not keep it for ever."""
    monkeypatch.setattr(limits, "AGAIN", 0.1)
    swallowed = []

    def swallows(real):
        def store(*_):
            for _ in range(2):
                try:
                    time.sleep(20)
                except BaseException as error:
                    swallowed.append(error)
            time.sleep(20)

        return store

    started = time.monotonic()
    assert run_mutant(prepared, made(swallows)).state == "timed_out"
    assert time.monotonic() - started < 10
    assert [type(error) for error in swallowed] == [OutOfTime, OutOfTime]


def test_a_fault_that_swallows_every_alarm_and_returns_is_stopped_after_its_case(prepared):
    """Between two cases there is no fault to swallow it."""

    def swallows(real):
        def store(*arguments):
            try:
                time.sleep(0.6 if not slept else 0)
            except BaseException as error:
                slept.append(error)
            real(*arguments)

        return store

    slept = []
    result = run_mutant(prepared, made(swallows))
    assert slept
    assert (result.state, result.reason, result.ran) == ("timed_out", "over 0.5 s", 1)


def test_the_end_of_a_limit_tells_that_it_has_passed():
    """Even if what ran inside swallowed the alarm."""
    with pytest.raises(OutOfTime), time_limit(0.05), suppress(BaseException):
        time.sleep(5)


@pytest.mark.parametrize("error", [SystemExit(7), ZeroDivisionError("no"), KeyError("x")])
def test_a_mutant_that_cannot_be_made_is_invalid(prepared, error):
    """Whatever its function raises is its reason, and ends nothing."""

    def unmade(real):
        raise error

    result = run_mutant(prepared, made(unmade))
    assert result.state == "invalid"
    assert f"the mutant test.unmade cannot be made: {type(error).__name__}" in result.reason


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mutant_that_exits_does_not_end_the_score(installed, workers):
    """In its function it is invalid, in the cached path loud, and the others are judged."""
    installed(
        "exits",
        HEAD
        + fault_text("in_its_function", "sys.exit(0)")
        + fault_text("in_the_path", "return lambda *_: sys.exit(0)"),
    )
    ids = ("exits.in_its_function", "exits.in_the_path", KILLED)
    found = score("zoo", mutants=ids, seed=1, examples=5, workers=workers, shrink=False)
    assert [result.state for result in found.results] == ["invalid", "loud", "killed"]
    assert "SystemExit: 0" in found.results[0].reason
    assert "sys.exit(0)" in found.results[1].reason


POISON = "cached.readout = lambda weights, x, readout=cached.readout: 2 * readout(weights, x)"


LEFT_CHANGED = "mutant leaves.a_change left the subject changed, so later results would be wrong"


@pytest.fixture
def leaving_a_change(installed, monkeypatch):
    """The mutant leaves.a_change, in whose process the clean decoder is wrong from then on."""
    from kvfuzz.subjects.zoo import cached

    monkeypatch.setattr(cached, "readout", cached.readout)
    installed("leaves", HEAD + fault_text("a_change", f"{POISON}\nreturn real"))


def test_a_mutant_that_leaves_a_change_behind_forbids_a_score_in_one_process(leaving_a_change):
    """The verdict is inconclusive and names it: nothing after it can be judged here."""
    ids = ("append.prepends", "leaves.a_change", KILLED)
    found = score("zoo", mutants=ids, seed=1, examples=5, shrink=False)
    assert (found.verdict, found.percent) == ("inconclusive", None)
    assert found.reason == LEFT_CHANGED
    assert [result.id for result in found.results] == ["append.prepends", "leaves.a_change"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=MORE_PROCESSES)])
def test_a_change_left_in_a_process_goes_with_it(leaving_a_change, workers):
    """The mutant is invalid for that reason, and all others are judged, those that watch too."""
    ids = ("append.prepends", "leaves.a_change", KILLED)
    found = score("zoo", mutants=ids, seed=1, examples=20, workers=workers, shrink=False)
    assert {result.id: result.state for result in found.results} == {
        "append.prepends": "killed",
        "leaves.a_change": "invalid",
        KILLED: "killed",
    }
    assert [each.reason for each in found.results if each.state == "invalid"] == [LEFT_CHANGED]
    assert (found.verdict, found.percent) == ("survived", 100.0)
    assert all(result.state == "survived" for result in found.placebos)


def test_an_invalid_mutant_exits_1(leaving_a_change, tmp_path, monkeypatch, capsys):
    """Where another is killed there is a score, which does not hide that one promise was broken."""
    monkeypatch.chdir(tmp_path)
    chosen = ["--mutant", "leaves.a_change", "--mutant", KILLED, "--examples", "5"]
    code = main(["score", "zoo", *chosen, "-n", "1", "--seed", "1", "--no-shrink"])
    assert code == 1
    assert LEFT_CHANGED in " ".join(capsys.readouterr().out.split())


def test_a_mutant_that_leaves_nothing_behind_is_clean(prepared):
    """Killed, invalid before its first case, or timed out."""
    for result in (
        Result("a", "test", "killed", killed_by=2, ran=3),
        Result("a", "test", "invalid"),
        Result("a", "test", "timed_out", ran=20),
    ):
        assert check_unchanged(prepared, find(KILLED), result) is None


def test_a_kill_after_a_case_that_raised_is_shrunk():
    """Shrinking passes over what raised, and starts from the case that killed."""

    def picky(real):
        def store(cache, layer, key, value):
            if key.shape[2] == 1:
                raise RuntimeError("loud")
            real(cache, layer, key[:, :, :-1], value[:, :, :-1])

        return store

    slow = prepare_cases("zoo", Options(), 100, 3, matrix=True)
    result = run_mutant(slow, made(picky))
    assert result.state == "killed"
    assert result.raised
    witness = add_witness(slow, made(picky), result).witness
    assert 1 not in witness["case"]["schedule"]
    assert witness["verdict"]["status"] == "diverged"


def test_what_is_judged_again_is_the_last_case_that_was_met(prepared, monkeypatch):
    """Of a mutant that was not killed, by its own order of the cases: another case, made ready only
    now, might be one that what it left behind does not touch."""
    mutant, seen = find(KILLED), []
    real = KnownReference.check
    monkeypatch.setattr(
        KnownReference, "check", lambda known, one: seen.append(known.case) or real(known, one)
    )
    order = prepared.order(mutant)
    assert order != sorted(order)
    for ran in (1, 5, 20):
        check_unchanged(prepared, mutant, Result("a", "test", "survived", ran=ran))
        assert seen.pop() == prepared.case(order[ran - 1], mutant)


def test_no_placebo_is_said(prepared, tmp_path):
    """In the terminal and on the page, instead of a number that sounds like a check."""
    found = score("zoo", mutants=(KILLED,), examples=5, seed=0, shrink=False)
    assert "placebos survived" in text.score_line(found)
    bare = replace(found, placebos=())
    assert "placebos survived" not in text.score_line(bare)
    assert "no placebo ran" in text.score_line(bare)
    assert "no placebo ran" in html.render(Report(bare))


def test_two_packages_with_the_same_mutant_are_both_named(installed, tmp_path):
    """With the way out."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("")
    (tmp_path / "other" / "twice.py").write_text(HEAD + fault_text("same", "return real"))
    installed("twice", HEAD + fault_text("same", "return real"))
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[kvfuzz.mutants]\nother = other\n")
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    with pytest.raises(UsageError, match=r"'twice.same', in other.twice and in twice: rename one"):
        library()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named"),
        (HEAD + "@mutant('store')\ndef bare(real):\n    return real\n", "ValueError: the mutant"),
    ],
)
@pytest.mark.parametrize("command", ["score", "mutants"])
def test_a_package_that_does_not_import_is_one_line(
    installed, command, source, error, capsys, tmp_path, monkeypatch
):
    """That names its module and the error, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    installed("broken_faults", source)
    assert main([command]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert f"the mutants of broken_faults do not import: {error}" in said[0]


def test_a_mutant_of_another_subject_is_refused_by_name(installed):
    """It is not said that there is no such mutant, nor that there are none at all."""
    installed("theirs", HEAD + fault_text("one", "return real", "their.module:Decoder"))
    message = "^theirs.one is a fault of their.module:Decoder, not of zoo$"
    with pytest.raises(UsageError, match=message):
        select("zoo", ids=("theirs.one", KILLED))
