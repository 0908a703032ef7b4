"""Worker processes: a mutant that kills, hangs or fills its process costs no other result."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from kvfuzz.cli.main import main
from kvfuzz.errors import Inconclusive
from kvfuzz.search import pool
from kvfuzz.subjects.loading import Options
from mutants.campaign import score as scoring
from mutants.campaign.campaign import Limits
from mutants.campaign.cases import prepare_cases
from mutants.campaign.score import score
from mutants.campaign.workers import judge_in_processes
from mutants.library.registry import library, select
from tests.mutants.campaigns import (
    HEAD,
    KILLED,
    SEVERAL,
    fault_text,
    install,
    path_with,
    processes_started,
)
from tests.mutants.test_journal import COMMAND

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
    """Each way of dying is a state with its reason, and the other mutants are judged."""
    ids = (*(f"deadly.{name}" for name in (*DEADLY, "hangs")), KILLED, "append.prepends")
    found = score(
        "zoo",
        mutants=ids,
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


def judge(names, workers, **settings):
    """The results of `names`, judged in `workers` processes on ten cases."""
    campaign = prepare_cases("zoo", Options(), 10, 1, shrink=False, **settings).campaign
    return [each.result for each in judge_in_processes(campaign, names, workers, lambda _: True)]


BOMB = "import mutants.campaign.workers as workers\nworkers.find = lambda _: os._exit(9)\n"


def test_a_process_that_dies_between_two_mutants_is_not_the_next_ones_fault(package, tmp_path):
    """The first mutant leaves a bomb, which kills the process when it gets the next mutant. That
    one is judged again, in a new process."""
    names = [package(f"{BOMB}return real")[0], *SEVERAL]
    found = judge(names, 1)
    assert {result.id for result in found} == set(names)
    assert "crashed" not in {result.state for result in found}
    assert processes_started(tmp_path) == 2  # the bomb went off


def test_a_process_that_dies_costs_no_other_process(package, tmp_path):
    """The mutant is judged twice, in a new process the second time; the other process goes on."""
    deadly = package("return lambda *_: os._exit(7)")[0]
    names = [*SEVERAL[:3], deadly, *SEVERAL[3:], "norm.skips_for_keys"]
    found = judge(names, 2)
    assert sorted(result.id for result in found) == sorted(names)
    assert [result.id for result in found if result.state == "crashed"] == [deadly]
    assert 3 <= processes_started(tmp_path) <= 4  # the last one may get no mutant


# Only the process that leads its group forks: its children would too, if they went on.
FORKS = "os.getpid() == os.getpgrp() and os.fork()\nreturn real"


def test_a_child_that_a_fault_forked_costs_no_process(package, tmp_path):
    """It ends before it answers: an answer of its own would end the process that it comes from."""
    found = judge([*package(FORKS), "append.prepends"], 1)
    assert [result.state for result in found] == ["survived", "killed", "killed"]
    assert processes_started(tmp_path) == 1


DROPS = "return lambda cache, layer, k, v: real(cache, layer, k[:, :, :-1], v[:, :, :-1])"
SLEEPS = (
    "import mutants.campaign.judge as judge\njudge.check_unchanged = lambda *_: time.sleep(7)\n"
)
DIES = "import mutants.campaign.judge as judge\njudge.{} = lambda *_: os._exit(7)\n"
ENDED = "its process ended with exit code 7"


@pytest.mark.parametrize(
    ("body", "state", "reason", "has_witness"),
    [
        (DIES.format("add_witness") + DROPS, "killed", "no witness: " + ENDED, False),
        (DIES.format("check_unchanged") + DROPS, "killed", None, True),
        (DIES.format("check_unchanged") + "return real", "survived", None, False),
    ],
    ids=["while it is shrunk", "after its witness", "after its cases"],
)
def test_what_is_known_of_a_mutant_outlives_its_process(package, body, state, reason, has_witness):
    """A process that dies after the cases have run does not change the state."""
    ids = package(body)
    found = score("zoo", mutants=ids[:1], seed=1, examples=5, workers=1).results[0]
    assert (found.state, found.reason) == (state, reason)
    assert (found.witness is not None) == has_witness


def test_the_clean_subject_has_more_time_than_a_mutant(package, monkeypatch):
    """Judging it again after the mutant may take longer than the mutant's own limit."""
    monkeypatch.setattr(pool, "GRACE", 0.5)
    ids = package(f"{SLEEPS}return real")
    found = score(
        "zoo", mutants=ids[:1], seed=1, examples=5, workers=1, limits=Limits(seconds=5)
    )  # fmt: skip
    assert found.results[0].state == "survived"


LOST = """
import os, signal
from multiprocessing import parent_process
from tests.subjects.models import Summing as Decoder
if parent_process() is not None:
    with open({file!r}, "a") as lost:
        lost.write("x")
    if os.path.getsize({file!r}) <= {times}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def judge_with_losses(folder, times):
    """The state of a placebo if the first processes are killed while they load the subject."""
    path = folder / f"lost_{times}.py"
    path.write_text(LOST.format(file=str(folder / f"lost_{times}"), times=times))
    campaign = prepare_cases(f"{path}:Decoder", Options(), 5, 1, shrink=False).campaign
    outcomes = judge_in_processes(campaign, ["placebos.passes_on"], 1, lambda _: True)
    return [outcome.result.state for outcome in outcomes]


def test_a_process_that_is_lost_while_it_starts_is_replaced(tmp_path):
    """The system may kill one for lack of memory; but not every one."""
    assert judge_with_losses(tmp_path, 1) == ["survived"]
    with pytest.raises(Inconclusive, match=r"its process was killed by SIGKILL when it started"):
        judge_with_losses(tmp_path, 99)


def test_the_memory_of_a_process_is_its_own(package):
    """A parent with 400 MB does not hide the 240 MB that a fault takes: on Linux a process inherits
    the peak of its parent in `getrusage`."""
    held = torch.ones(100_000_000)
    eats = "held.append(torch.ones(60_000_000))\ntime.sleep(1)\nreturn real"
    found = score(
        "zoo", mutants=package(eats, head="held = []\n")[:1], seed=1, examples=3, workers=1,
        shrink=False, limits=Limits(megabytes=100),
    )  # fmt: skip
    assert held.nbytes > 100 * 2**20
    assert found.results[0].state == "crashed"
    assert "took more than 100 MB of memory" in found.results[0].reason


def test_ctrl_c_while_processes_start_is_one_line(tmp_path):
    """The parent ends them: no traceback of a process that was starting is printed."""
    process = subprocess.Popen(
        [*COMMAND, "--seed", "1", "--folder", str(tmp_path)], text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not _children(process.pid) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "kvfuzz: interrupted")


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


def test_what_a_mutant_prints_is_no_part_of_the_report(package, capfd):
    """GitHub Actions would read it as a command."""
    loud = 'print("::error::mine")\nos.write(2, b"::error::mine")\nreturn lambda *_: 1 / 0'
    found = score("zoo", mutants=package(loud), seed=1, examples=5, workers=1, shrink=False)
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


LIE = b'["key", {"result": {"nonsense": 1}}]'


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (FORKS, "survived"),
        (NOISE.format(said=b"\0\0\0\5hello"), "crashed"),
        (NOISE.format(said=len(LIE).to_bytes(4, "big") + LIE), "crashed"),
    ],
    ids=["forks", "noise", "lies"],
)
def test_noise_in_the_pipe_costs_no_other_result(package, body, state):
    """A forked child, and bytes that a fault writes to every descriptor, are not taken for the
    result of another mutant, and lose none."""
    ids = (*package(body), "append.prepends")
    found = score("zoo", mutants=ids, seed=1, examples=5, workers=1, shrink=False)
    states = {result.id: result.state for result in found.results}
    assert states == {"package.fault": state, KILLED: "killed", "append.prepends": "killed"}
    assert [result.state for result in found.canaries] == ["killed"]
    assert len(found.placebos) == len(select("zoo")[1]) - 1


def test_a_result_that_does_not_come_back_forbids_a_score(monkeypatch):
    """What is missing cannot be counted."""
    real = scoring.judge_in_processes

    def losing(*arguments):
        return (judged for judged in real(*arguments) if judged.result.id != KILLED)

    monkeypatch.setattr(scoring, "judge_in_processes", losing)
    ids = (KILLED, "append.prepends")
    found = score("zoo", mutants=ids, seed=1, examples=5, workers=1, shrink=False)
    assert (found.verdict, found.percent) == ("inconclusive", None)
    assert found.reason == f"no result for {KILLED}"


UNPRINTABLE = 'raise ValueError(chr(0xD800) + "x" * 10**6)'


MUTE = "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\nraise Mute"


@pytest.mark.parametrize(
    ("body", "reason"),
    [(UNPRINTABLE, "raised ValueError: \\ud800xxx"), (MUTE, "raised Mute")],
    ids=["unprintable", "mute"],
)
def test_what_a_mutant_raises_fits_into_a_line_of_every_report(
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


def test_the_workers_of_a_campaign_that_was_killed_end_too(tmp_path):
    """No process is left running."""
    marker = str(tmp_path / "folder-of-this-test")
    process = subprocess.Popen(
        [*COMMAND, "--seed", "1", "--folder", marker],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    children = []
    end = time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < end:
        time.sleep(0.2)
        children = _children(process.pid)
    assert len(children) >= 2
    process.kill()
    process.wait()
    while any(map(_alive, children)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_alive, children))


def _children(pid):
    """The processes that `pid` started, and those that they started: all but its bookkeeper."""
    told = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], check=False, capture_output=True, text=True
    ).stdout
    found, rows = [pid], [line.split(None, 2) for line in told.splitlines()]
    for parent in found:
        found += [
            int(own)
            for own, of, command in rows
            if int(of) == parent and "resource_tracker" not in command
        ]
    return found[1:]


def _alive(pid):
    told = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return bool(told.stdout.strip()) and not told.stdout.strip().startswith("Z")
