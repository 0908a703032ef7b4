"""A campaign loses nothing: not to a mutant that dies, hangs or eats memory, and not to kill -9."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.cli.main import main
from kvfuzz.errors import Inconclusive, UsageError
from kvfuzz.subjects.calibration import Calibration, Lane
from kvfuzz.subjects.loading import Options
from mutants.campaign import prepared_cases, workers
from mutants.campaign import score as scoring
from mutants.campaign.campaign import Limits, identity_of, read
from mutants.campaign.cases import prepare_cases
from mutants.campaign.journal import SCHEMA, Journal
from mutants.campaign.result import MutantOutcome, Result
from mutants.campaign.score import control_failure, interleave_controls, score
from mutants.campaign.workers import _most_memory, _Worker, judge_in_processes
from mutants.library.registry import library, select
from tests.mutants.campaigns import HEAD, KILLED, fault_text, install, path_with, table

SEVERAL = (
    "append.prepends",
    "crop.drops_one_too_many",
    KILLED,
    "position.restarts_at_each_chunk",
    "reorder.goes_the_other_way",
)
DEADLY = {
    "exits": ("return lambda *_: os._exit(7)", "its process ended with exit code 7 on case"),
    "faults": (
        "return lambda *_: ctypes.string_at(0)",
        "its process was killed by SIGSEGV on case",
    ),
    "kills": (
        "return lambda *_: os.killpg(0, signal.SIGKILL)",
        "its process was killed by SIGKILL on case",
    ),
    "eats": (
        "held = []\n"
        "def store(*_):\n"
        "    while True:\n"
        "        held.append(torch.ones(20_000_000))\n"
        "        time.sleep(0.02)\n"
        "return store",
        "its process took more than 300 MB of memory on case",
    ),
}
HANGS = """
def store(*_):
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
return store
"""


@pytest.fixture
def deadly(tmp_path, monkeypatch):
    """A package of faults that end, hang or fill their process."""
    faults = [fault_text(name, body) for name, (body, _) in DEADLY.items()]
    install(tmp_path, "deadly", HEAD + "".join([*faults, fault_text("hangs", HANGS.strip())]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
    library.cache_clear()
    yield
    library.cache_clear()
    sys.modules.pop("deadly", None)


def test_a_mutant_that_ends_hangs_or_fills_its_process_costs_no_other_result(deadly):
    """Real processes that really die: each is a state of its own, and the others are judged."""
    ids = (*(f"deadly.{name}" for name in (*DEADLY, "hangs")), KILLED, "append.prepends")
    found = score(
        "zoo",
        ids=ids,
        seed=1,
        examples=10,
        workers=2,
        shrink=False,
        limits=Limits(seconds=5, megabytes=300),
    )
    results = {result.id: result for result in found.results}
    for name, (_, reason) in DEADLY.items():
        assert results[f"deadly.{name}"].state == "crashed"
        assert reason in results[f"deadly.{name}"].reason
    assert results["deadly.hangs"].state == "timed_out"
    assert results["deadly.hangs"].reason.startswith("over 5 s, in one call on case")
    assert results[KILLED].state == results["append.prepends"].state == "killed"
    # Neither a crash nor a hang is a kill: 2 of the 3 that were decided.
    assert found.percent == pytest.approx(200 / 3)
    assert [result.state for result in found.canaries] == ["killed"]


def count_processes(monkeypatch):
    """A list with an item for each process that is started from now on."""
    real, started = workers._Team._new, []
    monkeypatch.setattr(workers._Team, "_new", lambda team: started.append(1) or real(team))
    return started


def test_a_process_that_dies_between_two_mutants_is_not_the_next_ones_fault(
    deadly, tmp_path, monkeypatch
):
    """One that leaves a bomb behind: whoever it hits is judged again, in a new process."""
    bomb = (
        "import mutants.campaign.workers\nmutants.workers.find = lambda _: os._exit(9)\nreturn real"
    )
    install(tmp_path, "bombs", HEAD + fault_text("later", bomb))
    library.cache_clear()
    names, started = ["bombs.later", *SEVERAL], count_processes(monkeypatch)
    campaign = prepare_cases("zoo", Options(), 10, 1, shrink=False).campaign
    states = {
        judged.result.id: judged.result.state
        for judged in judge_in_processes(campaign, names, 1, lambda _: True)
    }
    assert set(states) == set(names)
    assert "crashed" not in states.values()
    assert len(started) == 2  # it did go off


def test_a_process_that_dies_costs_no_other_process(deadly, monkeypatch):
    """Two processes, and one in the place of each that dies: the other goes on with what waits
    while the new one starts, and is not replaced for the second trial."""
    started = count_processes(monkeypatch)
    campaign = prepare_cases("zoo", Options(), 10, 1, shrink=False).campaign
    names = [*SEVERAL[:3], "deadly.exits", *SEVERAL[3:], "norm.skips_for_keys"]
    found = [j.result for j in judge_in_processes(campaign, names, 2, lambda _: True)]
    assert sorted(result.id for result in found) == sorted(names)
    assert [result.id for result in found if result.state == "crashed"] == ["deadly.exits"]
    assert len(started) == 2 + 2


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (Result(KILLED, "norm", "killed"), "no witness: its process ended with exit code 7"),
        (Result(KILLED, "norm", "killed", witness={"case": {}}), None),
        (Result(KILLED, "norm", "survived"), None),
    ],
)
def test_what_was_known_of_a_mutant_outlives_its_process(known, reason):
    """While it is shrunk, or while the clean subject is judged again, its state is settled."""
    worker = _Worker(None, None, Limits(seconds=2), ready=True, mutant=KILLED)
    worker._heard({"known": known.to_json(), "within": 60.0})
    assert worker.within == 60
    found = worker._gone("crashed", "ended with exit code 7").result
    assert (found.state, found.reason, found.witness) == (known.state, reason, known.witness)
    assert worker.lost


def test_a_subject_that_cannot_be_loaded_in_a_process_is_told(tmp_path):
    """In a line, and not by waiting for ever."""
    campaign = prepare_cases("zoo", Options(), 1, 0).campaign
    lost = campaign.to_json() | {"subject": "no.such.module:decoder"}

    class Lost:
        limits = campaign.limits

        def to_json(self):
            return lost

    with pytest.raises(Inconclusive, match=r"no mutant can be judged: .*no\.such"):
        list(judge_in_processes(Lost(), [KILLED], 1, lambda _: True))


def test_a_budget_of_forward_calls_times_a_mutant_out():
    """The same on every machine; a mutant that needs more is not called killed, nor survived."""

    def states(calls):
        found = score(
            "zoo", ids=("crop.drops_one_too_many",), seed=0, examples=50, shrink=False,
            limits=Limits(calls=calls),
        )  # fmt: skip
        return found.results[0]

    enough = states(10_000)
    assert enough.state == "killed"
    starved = score(
        "zoo", ids=("reuse.reset_leaves_the_blocks",), seed=0, examples=50, shrink=False,
        limits=Limits(calls=20),
    ).results[0]  # fmt: skip
    assert (starved.state, starved.reason) == ("timed_out", "no kill in 20 forward calls")
    assert 20 <= starved.calls < 60


def test_shrinking_stops_at_its_calls_with_the_smallest_case_yet():
    """With nothing to spend the witness is a case as it was drawn; with plenty the smallest."""

    def witness(calls):
        ids, limits = ("append.later_chunk_replaces_all",), Limits(calls=calls)
        found = score("zoo", ids=ids, seed=4, examples=50, limits=limits)
        assert found.results[0].witness["verdict"]["status"] == "diverged"
        return Case.from_json(found.results[0].witness["case"]), found.cases

    drawn, cases = witness(1)
    assert any((drawn.tokens, drawn.schedule) == (c.tokens, c.schedule) for c in cases)
    shrunk, _ = witness(10_000)
    assert (shrunk.tokens, shrunk.schedule) == (((0, 0, 0),), (1, 2))


def test_a_campaign_survives_a_journey_as_json():
    """What a process takes over is what was sent: the same cases, options and limits."""
    campaign = prepare_cases("zoo:rope", Options(dtype="float64"), 5, 7, matrix=True).campaign
    factory, other = read(json.loads(json.dumps(campaign.to_json())))
    assert factory.name == "zoo:rope"
    assert other == campaign
    assert identity_of(other, []) == identity_of(campaign, [])
    result = Result("a", "b", "killed", kills=(1, 2), laws=("agreement",) * 2, map=({"a": 1.0},))
    assert MutantOutcome.from_json(
        json.loads(json.dumps(MutantOutcome(result, "x").to_json()))
    ) == MutantOutcome(result, "x")


def test_a_calibration_is_part_of_a_campaign_and_not_where_it_is_kept():
    """Two shards may have the same one in different folders; another gives another table."""

    def identity(path, leeway=2.0):
        lane = Lane("float32", 1, 1, 0, 1.5, {}, leeway)
        calibration = Calibration("zoo", 0, 1, {}, (lane,), path=path)
        options = Options(calibration=calibration)
        return identity_of(prepare_cases("zoo", options, 1, 0).campaign, [])

    assert identity("here.json") == identity("there/it/is.json")
    assert identity("here.json") != identity("here.json", leeway=3.0)


def test_a_resumed_campaign_judges_only_what_is_missing(tmp_path):
    """And gives the same table; what is in the journal is not judged again."""
    journal = tmp_path / "score.sqlite"
    whole = score("zoo", ids=SEVERAL, seed=3, examples=30, shrink=False, journal=journal)
    with sqlite3.connect(journal) as file:
        file.execute("DELETE FROM judged WHERE mutant IN (?, ?)", SEVERAL[:2])
        file.execute("UPDATE judged SET judged = NULL WHERE mutant = ?", SEVERAL[2:3])
    seen = []
    resumed = score(
        "zoo",
        ids=SEVERAL,
        examples=30,
        shrink=False,
        journal=journal,
        resume=True,
        progress=lambda result, to_come: seen.append((result.id if result else None, to_come)),
    )
    assert seen == [(name, 3) for name in (None, *SEVERAL[:3])]
    assert resumed.seed == 3
    assert table(resumed) == table(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 31}, "examples 30"),
        ({"ids": SEVERAL[:2]}, "the last has other mutants;"),
        ({"options": Options(dtype="float32")}, "dtype null"),
        ({"matrix": True}, "matrix false"),
    ],
)
def test_another_campaign_is_not_resumed(tmp_path, changes, message):
    """What is resumed is this campaign or none; the message says what the last one was."""
    journal = tmp_path / "score.sqlite"
    asked = {"ids": SEVERAL[:1], "examples": 30, "shrink": False}
    score("zoo", **asked, seed=3, journal=journal)
    with pytest.raises(UsageError, match=message):
        score("zoo", **{**asked, **changes}, journal=journal, resume=True)


def test_what_the_code_was_is_part_of_what_is_resumed(tmp_path, monkeypatch):
    """Results of other code are not mixed with those of this one."""
    from mutants.campaign import campaign

    journal = tmp_path / "score.sqlite"
    score("zoo", ids=SEVERAL[:1], seed=3, examples=5, shrink=False, journal=journal)
    monkeypatch.setattr(campaign, "_code_digest", lambda _: "another")
    with pytest.raises(UsageError, match=r"the last has other code"):
        score("zoo", ids=SEVERAL[:1], examples=5, shrink=False, journal=journal, resume=True)


def test_without_resume_a_campaign_is_judged_anew(tmp_path):
    """What the journal holds of it is forgotten."""
    journal, seen = tmp_path / "score.sqlite", []
    for _ in range(2):
        score(
            "zoo", ids=SEVERAL[:2], seed=3, examples=5, shrink=False, journal=journal,
            progress=lambda result, _: seen.append(result),
        )  # fmt: skip
    assert sum(result is not None for result in seen) == 2 * (2 + 5)


def test_a_resume_without_a_journal_or_of_a_broken_one_is_one_line(tmp_path, capsys, monkeypatch):
    """With the way out, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert main(["score", "zoo", "--resume", "--examples", "1"]) == 2
    assert "there is no campaign to resume in .kvfuzz/score.sqlite" in capsys.readouterr().err
    (tmp_path / "broken").write_text("this is no database, however long it may be" * 40)
    assert main(["score", "zoo", "--journal", "broken", "--examples", "1"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "cannot keep the journal broken: file is not a database" in said[0]


def test_a_journal_in_a_folder_that_cannot_be_is_one_line(tmp_path):
    """That names it, and the way out."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot keep the journal .*file.j: .*; name another"):
        Journal(tmp_path / "file" / "j")


def test_what_was_not_begun_in_time_is_judged_when_resumed(tmp_path):
    """A campaign that ran out of time goes on where it stopped."""
    journal = tmp_path / "score.sqlite"
    asked = {"ids": (KILLED, "append.prepends"), "examples": 5, "shrink": False}
    asked["journal"] = journal
    late = score("zoo", **asked, seed=3, seconds=1e-6)
    assert {result.state for result in late.results} == {"timed_out"}
    # Nothing was judged, so there is nothing to score.
    assert (late.percent, late.verdict) == (None, "inconclusive")
    assert late.reason == "no mutant was judged in the time that there was"
    assert {r.state for r in score("zoo", **asked, resume=True).results} == {"killed"}


def test_those_that_watch_are_spread_among_the_mutants():
    """In every part of a campaign, the first of them first."""
    scored, watch = select("zoo")
    for shard in (scored, scored[::7], scored[:1]):
        order = interleave_controls(shard, watch)
        places = [place for place, mutant in enumerate(order) if mutant.is_control]
        assert places[0] == 0
        assert sorted(m.id for m in order) == sorted(m.id for m in (*shard, *watch))
        gaps = [later - place for place, later in pairwise(places)]
        assert max(gaps) - min(gaps) <= 1


def test_a_canary_that_lives_forbids_a_score(monkeypatch):
    """A checker that misses what nothing can miss proves nothing."""
    from mutants.campaign import judge

    blind = Result("canary.rolls_the_vocabulary", "canary", "survived")
    real = judge.run_mutant
    monkeypatch.setattr(
        judge,
        "run_mutant",
        lambda cases, m, *rest: blind if m.canary else real(cases, m, *rest),
    )
    found = score("zoo", ids=SEVERAL[:1], seed=1, examples=5, shrink=False)
    assert (found.verdict, found.percent) == ("inconclusive", None)
    assert found.reason == (
        "the canary canary.rolls_the_vocabulary, which nothing can miss, is survived"
    )
    assert control_failure([], [Result("c", "canary", "killed")]) is None


def test_a_journal_takes_two_campaigns_at_once(tmp_path):
    """Two shards may write into one file."""
    one, other = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    digests = [j.begin({"seed": n}, ["a"], False) for n, j in enumerate((one, other))]
    for journal, digest, state in ((one, digests[0], "killed"), (other, digests[1], "survived")):
        journal.note_begun(digest, "a")
        journal.note_judged(digest, MutantOutcome(Result("a", "b", state)))
    assert one.finished(digests[0])["a"].result.state == "killed"
    assert one.finished(digests[1])["a"].result.state == "survived"


KILLS = 3
COMMAND = [
    sys.executable, "-c", "from kvfuzz.cli.main import main; raise SystemExit(main())",
    "score", "zoo", "--examples", "20", "--no-shrink", "-n", "2",
    *(word for name in SEVERAL for word in ("--mutant", name)),
]  # fmt: skip


def run_and_kill(folder, seed, done, resume):
    """A real campaign in its own process group, killed with SIGKILL as soon as `done` of its
    mutants are judged and another has begun; returns its exit code. Not at all for None."""
    words = [*COMMAND, "--folder", str(folder), "--json", str(folder / "score.json")]
    words += ["--resume"] if resume else ["--seed", str(seed)]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    if done is not None:
        while process.poll() is None and not _has_come_to(folder / "score.sqlite", done):
            time.sleep(0.005)
        process.kill()
    return process.wait()


def test_a_campaign_killed_at_random_moments_gives_the_same_table(tmp_path):
    """Always in the midst of its work, each time further on, and then resumed to its end.
    `benchmarks/resuming.py` does it thirty times, by the clock. Its workers end with it, too."""
    seed = 1
    whole = score("zoo", ids=SEVERAL, seed=seed, examples=20, shrink=False)
    moments = sorted(random.Random(seed).sample(range(7), KILLS))
    codes = [run_and_kill(tmp_path, seed, done, n > 0) for n, done in enumerate(moments)]
    assert codes == [-signal.SIGKILL] * KILLS
    assert not (tmp_path / "score.json").exists()
    assert run_and_kill(tmp_path, seed, None, True) in (0, 1)
    told = json.loads((tmp_path / "score.json").read_text())
    found = [{**m, "seconds": 0, "witness": None} for m in told["mutants"]]
    assert [(m["id"], m["state"], m["killed_by"], m["site"]) for m in found] == [
        (r.id, r.state, r.killed_by, r.site) for r in whole.results
    ]


def _has_come_to(journal, done):
    """Whether the campaign has judged `done` mutants and begun another: ten there are in all."""
    if not journal.exists():
        return False
    with sqlite3.connect(journal) as file:
        try:
            begun, judged = file.execute("SELECT count(*), count(judged) FROM judged").fetchone()
        except sqlite3.Error:
            return False
    return judged >= done and begun > judged


def test_the_workers_of_a_campaign_that_was_killed_end_too(tmp_path):
    """Nothing is left running."""
    marker = str(tmp_path / "folder-of-this-test")
    process = subprocess.Popen(
        [*COMMAND, "--seed", "1", "--folder", marker],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    children = []
    end = time.monotonic() + 60
    while not children and time.monotonic() < end:
        time.sleep(0.2)
        children = _children(process.pid)
    assert children
    process.kill()
    process.wait()
    while any(map(_alive, children)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_alive, children))


def _children(pid):
    """The worker processes of `pid`."""
    told = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], check=False, capture_output=True, text=True
    ).stdout
    rows = [line.split(None, 2) for line in told.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and "spawn_main" in row[2]]


def _alive(pid):
    told = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return bool(told.stdout.strip()) and not told.stdout.strip().startswith("Z")


def one_killed(campaign, monkeypatch, times):
    """What becomes of one mutant if the first processes are killed while they start."""
    real, left = workers._Team._new, [times]

    def new(team):
        worker = real(team)
        if left[0]:
            left[0] -= 1
            os.kill(worker.process.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(workers._Team, "_new", new)
    return [j.result.state for j in judge_in_processes(campaign, [KILLED], 1, lambda _: True)]


def test_a_process_that_is_lost_while_it_starts_is_replaced(monkeypatch):
    """By the system, which was short of memory, for one; but not for ever."""
    campaign = prepare_cases("zoo", Options(), 5, 1, shrink=False).campaign
    assert one_killed(campaign, monkeypatch, 1) == ["killed"]
    with pytest.raises(Inconclusive, match=r"its process was killed by SIGKILL when it started"):
        one_killed(campaign, monkeypatch, 99)


FIRST = """
import os, signal, time
from mutants.campaign import workers
with workers._deaf():
    process = workers._SPAWN.Process(target=time.sleep, args=(1,))
    process.start()
os.kill(process.pid, signal.SIGINT)
process.join()
raise SystemExit(process.exitcode)
"""


def test_ctrl_c_ends_no_process_while_it_starts():
    """Also the first of all, before which no other has been started: the campaign is what ends it,
    and no traceback of a process that was not ready stands beside its message."""
    done = subprocess.run([sys.executable, "-c", FIRST], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs one fault, by its body, which is then called `package.fault`."""

    def made(body):
        install(tmp_path, "package", HEAD + fault_text("fault", body))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
        library.cache_clear()
        return ("package.fault", KILLED)

    yield made
    library.cache_clear()
    sys.modules.pop("package", None)


def test_what_a_mutant_prints_is_no_part_of_the_report(package, capfd):
    """Nor is it a command to what reads standard output."""
    loud = 'print("::error::mine")\nos.write(2, b"::error::mine")\nreturn lambda *_: 1 / 0'
    found = score("zoo", ids=package(loud), seed=1, examples=5, workers=1, shrink=False)
    assert {r.id: r.state for r in found.results} == {"package.fault": "loud", KILLED: "killed"}
    assert capfd.readouterr() == ("", "")


NOISE = """
for descriptor in range(3, 40):
    try:
        os.write(descriptor, {said!r})
    except OSError:
        pass
return real
"""
LIE = b'{"judged": {"nonsense": 1}}'


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("os.fork()\nreturn real", "survived"),
        (NOISE.format(said=b"\0\0\0\5hello"), "crashed"),
        (NOISE.format(said=len(LIE).to_bytes(4, "big") + LIE), "crashed"),
    ],
    ids=["forks", "noise", "lies"],
)
def test_a_second_voice_of_a_process_is_not_listened_to(package, body, state):
    """A child that a fault left behind, and what it writes wherever it can: no other result is
    taken for what they say, or lost."""
    ids = (*package(body), "append.prepends")
    found = score("zoo", ids=ids, seed=1, examples=5, workers=1, shrink=False)
    states = {result.id: result.state for result in found.results}
    assert states == {"package.fault": state, KILLED: "killed", "append.prepends": "killed"}
    assert [result.state for result in found.canaries] == ["killed"]
    assert len(found.placebos) == len(select("zoo")[1]) - 1


def test_a_child_that_a_fault_left_costs_no_process(package, monkeypatch):
    """It ends before it speaks: what it said would end the process that it comes from."""
    started = []
    real = workers._Team._new
    monkeypatch.setattr(workers._Team, "_new", lambda team: started.append(1) or real(team))
    ids = (*package("os.fork()\nreturn real"), "append.prepends")
    score("zoo", ids=ids, seed=1, examples=5, workers=1, shrink=False)
    assert len(started) == 1


def test_a_result_that_does_not_come_back_forbids_a_score(monkeypatch):
    """Whatever lost it: what is not there cannot be counted."""
    real = scoring.judge_in_processes

    def losing(*arguments):
        return (judged for judged in real(*arguments) if judged.result.id != KILLED)

    monkeypatch.setattr(scoring, "judge_in_processes", losing)
    ids = (KILLED, "append.prepends")
    found = score("zoo", ids=ids, seed=1, examples=5, workers=1, shrink=False)
    assert (found.verdict, found.percent) == ("inconclusive", None)
    assert found.reason == f"nothing has come back of {KILLED}"


UNPRINTABLE = 'raise ValueError(chr(0xD800) + "x" * 10**6)'
MUTE = "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\nraise Mute"


@pytest.mark.parametrize(
    ("body", "reason"),
    [(UNPRINTABLE, "raised ValueError: \\ud800xxx"), (MUTE, "raised Mute")],
    ids=["unprintable", "mute"],
)
def test_what_a_mutant_raises_is_told_in_a_line_that_any_report_can_hold(
    package, tmp_path, monkeypatch, capsys, body, reason
):
    """However long it is, and whatever is in it."""
    monkeypatch.chdir(tmp_path)
    indented = body.replace("\n", "\n    ")
    ids = package(f"def store(*_):\n    {indented}\nreturn store")
    chosen = [word for name in ids for word in ("--mutant", name)]
    asked = ["--seed", "1", "--examples", "5", "-n", "1", "--no-shrink"]
    files = ["--json", "s.json", "--html", "s.html", "--junit", "s.xml", "--markdown", "s.md"]
    assert main(["score", "zoo", *chosen, *asked, *files]) == 0
    found = json.loads((tmp_path / "s.json").read_text())["mutants"]
    (told,) = (each["reason"] for each in found if each["id"] == ids[0])
    assert reason in told
    assert len(told) < 1200
    assert all((tmp_path / name).stat().st_size for name in files[1::2])


def test_a_journal_that_is_lost_on_the_way_costs_no_result(package, tmp_path):
    """What comes after it is not kept, which is told."""
    journal = tmp_path / "journal" / "score.sqlite"
    removes = f"import shutil\nshutil.rmtree({str(journal.parent)!r}, True)\nreturn real"
    ids, settings = package(removes), {"seed": 1, "examples": 5, "shrink": False}
    with pytest.warns(UserWarning, match=r"cannot keep the journal .* cannot be resumed"):
        found = score("zoo", ids=ids, **settings, workers=1, journal=journal)
    assert {r.id: r.state for r in found.results} == {"package.fault": "survived", KILLED: "killed"}


@pytest.mark.filterwarnings("default")
def test_the_command_tells_in_one_line_that_the_journal_is_lost(package, tmp_path, capsys):
    """Without the place in our code."""
    removes = f"import shutil\nshutil.rmtree({str(tmp_path / 'kept')!r}, True)\nreturn real"
    chosen = [word for name in package(removes) for word in ("--mutant", name)]
    asked = ["--seed", "1", "--examples", "5", "-n", "1", "--no-shrink"]
    folders = ["--journal", str(tmp_path / "kept" / "score.sqlite"), "--folder", str(tmp_path)]
    assert main(["score", "zoo", *chosen, *asked, *folders]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "cannot be resumed" in line]
    assert [line.split(":")[0] for line in told] == ["warning"]


def test_the_memory_of_a_process_is_its_own():
    """Not that of the one that started it, which Linux hands on: a worker would have as much more
    as its parent is large."""
    held = torch.ones(100_000_000)
    code = "from mutants.campaign.workers import _most_memory; print(_most_memory())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert 10 < float(said.stdout) < _most_memory() - 0.5 * held.nbytes / 2**20


def test_the_database_of_another_program_is_left_alone(tmp_path):
    """It is no journal, and does not become one."""
    path = tmp_path / "mail.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE mail (subject TEXT)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"mail\.sqlite is the database of another program"):
        Journal(path)
    assert path.read_bytes() == before
    half = tmp_path / "half.sqlite"
    with sqlite3.connect(half) as file:
        file.execute(SCHEMA.partition(";")[0])  # what a kill may leave of the first beginning
    Journal(half).close()


@pytest.mark.parametrize(
    "option", [("--mutant-time", "nan"), ("--mutant-time", "inf"), ("--fail-under", "nan")]
)
def test_a_limit_that_is_no_number_is_refused(option, capsys):
    """It would fail no comparison, so that a gate of it is none."""
    assert main(["score", "zoo", *option]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert f"'{option[1]}' is not a finite number" in said[-1]


def test_a_clean_subject_that_does_not_return_is_told(monkeypatch):
    """It has more time than a mutant, and not for ever."""
    monkeypatch.setattr(prepared_cases, "SECONDS_FOR_CLEAN", 0.2)
    name = "tests.mutants.campaigns:Sleeps"
    made = prepare_cases(name, Options(), 3, 1, limits=Limits(seconds=0.1))
    assert (
        prepared_cases.check_baseline(made) == f"the unmutated {name} takes over 0.2 s for case 0"
    )
