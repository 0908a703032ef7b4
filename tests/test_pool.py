"""The pool: processes that are lost cost their own item, and no process is left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from kvfuzz.search import pool
from kvfuzz.search.pool import Pool

COLLECTED_IMPORTS = gc.isenabled()
"""Whether this module was imported with the garbage collector on."""


def start():
    """Returns the work of a process of these tests."""
    return work


def work(item, say):
    """Does as `item` says, and returns it."""
    say(case=item)
    if item == "starts a process":
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        process.join()
    elif item == "is slow":
        time.sleep(2)
    elif item == "dies":
        os._exit(7)
    elif item == "hangs":
        time.sleep(600)
    elif item == "its parent":
        return os.getppid()
    elif item == "its environment":
        return [os.environ.get(name) for name in ("OF_THIS_TEST", "PYTHONPATH", *pool.ONE_THREAD)]
    return item


def test_what_becomes_of_each_item_comes_in_order(monkeypatch):
    """Also if a later one ends first. One that ends its process or never returns costs no other;
    one that starts a process of its own may."""
    monkeypatch.setattr(pool, "GRACE", 1.0)
    items = ["is slow", "dies", "quick", "starts a process", "hangs", "last"]
    with closing(Pool(start, 2, "nothing can run", seconds=9)) as several:
        found = list(several.run_in_order(items))
    assert [each.item for each in found] == items
    assert [each.result for each in found] == [
        "is slow", None, "quick", "starts a process", None, "last",
    ]  # fmt: skip
    lost = [(each.lost, each.why, each.said) for each in found if each.lost]
    assert lost == [
        ("crashed", "its process ended with exit code 7", {"case": "dies"}),
        ("timed_out", "over 9 s, in one call", {"case": "hangs"}),
    ]


def test_a_process_has_the_environment_of_now(monkeypatch):
    """Not the one of the first process; and torch has one thread."""
    assert run_one("quick") == "quick"
    monkeypatch.setenv("OF_THIS_TEST", "set")
    assert run_one("its environment") == ["set", os.environ.get("PYTHONPATH"), "1"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are spawned there, not forked")
def test_the_process_that_others_are_forked_from_is_replaced():
    """A subject may kill it, or the system for lack of memory."""
    server = run_one("its parent")
    assert server not in (os.getpid(), os.getppid())
    os.kill(server, signal.SIGKILL)
    assert run_one("its parent") not in (server, os.getpid())


def run_one(item):
    with closing(Pool(start, 1, "nothing can run")) as one:
        (ended,) = one.run_in_order([item])
    return ended.result


def leave():
    """Starts a process that nobody ends, and writes down which; then waits for ever."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("left.part").write_text(str(process.pid))
    Path("left.part").rename("left")
    time.sleep(600)


LEAVES = """
from contextlib import closing
from kvfuzz.search.pool import Pool
from tests.test_pool import leave
if __name__ == "__main__":
    with closing(Pool(leave, 1, "nothing can run")) as one:
        list(one.run_in_order([0]))
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
def test_what_a_subject_started_ends_with_the_parent(tmp_path):
    """Even if the parent is killed, and can end nothing itself."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    root = str(Path(__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, "leaves.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}
    )
    end = time.monotonic() + 60
    while not (tmp_path / "left").exists() and time.monotonic() < end:
        time.sleep(0.05)
    left = Path("/proc", (tmp_path / "left").read_text())
    assert left.exists()
    parent.kill()
    parent.wait()
    while left.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not left.exists()


def start_watching():
    """Returns work that tells what the garbage collector did at first, and what it does now."""
    at_first = COLLECTED_IMPORTS, gc.isenabled()
    return lambda item, say: [*at_first, gc.isenabled(), gc.get_freeze_count() > 50_000]


def test_the_collector_is_off_until_a_worker_can_begin():
    """While it imports torch and prepares; then it is on, and leaves all of that alone."""
    with closing(Pool(start_watching, 1, "nothing can run")) as one:
        (ended,) = one.run_in_order([0])
    assert ended.result == [False, False, True, True]
