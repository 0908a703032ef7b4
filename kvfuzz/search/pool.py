"""Runs work in processes, which a subject may kill, hang or fill. Hunts and campaigns share it.

Read from top to bottom: `Pool` holds the processes, hands out work and replaces what is lost;
`Worker` is the parent's end of one process; `_work` is what runs in it.

Work goes out and comes back as JSON over a pipe, one item at a time. A process that dies, is
silent for too long or takes too much memory is replaced. A fork after torch has run crashes, so
processes are forked from one that has only imported it, or spawned where the system's own libraries
bear no fork. They have one torch thread each, never see Ctrl-C, and end when their parent does.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import re
import resource
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from kvfuzz.case.collector import kept_until_the_end
from kvfuzz.errors import Inconclusive, KvfuzzError
from kvfuzz.search.beginning import begin

GRACE = 5.0
"""Seconds beyond a limit before a process is killed: the work may have an alarm of its own."""
STARTING = 300.0
"""Seconds that a process has to import torch and load the subject."""
STARTS_LOST = 3
"""This many processes may be killed while they start: the system may do so for lack of memory."""
LONGEST_MESSAGE = 2**26
"""Bytes of a message. A longer one is noise that a subject wrote into the pipe."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
WATCH = 0.05
"""Seconds between two measurements of a process's memory."""
HIGH_WATER = Path("/proc/self/status")
"""The file in which Linux reports the peak memory of a process; macOS has none."""
_FORKS = sys.platform == "linux"
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")

Say = Callable[..., None]
Work = Callable[[Any, Say], Any]
"""Does one item and returns its result. It calls `say` before each part that may never return, with
what is worth knowing if the process is lost there. `within` are the seconds until it says more;
`spoiled` asks for another process after this item."""


@dataclass(frozen=True)
class Ended:
    """The end of an item: its `result`; or how its process was `lost` (`crashed` or `timed_out`, or
    `refused` to start), why, and what the work had `said` by then."""

    item: Any
    result: Any = None
    lost: str = ""
    why: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Pool:
    """So many processes that do one kind of work. Close it at the end, which kills them.

    Each process calls `start`, which can be pickled, for its Work. It may be silent for `seconds`
    and grow by `megabytes`. `failure` begins the message if none can be started.
    """

    start: Callable[[], Work]
    size: int
    failure: str
    seconds: float = math.inf
    megabytes: float = math.inf
    workers: list[Worker] = field(default_factory=list)
    starts_lost: int = 0

    def close(self) -> None:
        for worker in self.workers:
            worker.end()

    @property
    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.ready and worker.item is None]

    @property
    def busy(self) -> bool:
        return any(worker.item is not None for worker in self.workers)

    def run_in_order(self, items: Iterable[Any]) -> Iterator[Ended]:
        """Runs `items`, each of which is taken when a process is idle. Yields their ends in the
        order of the items, whatever the number of processes."""
        waiting, given, ended = iter(items), deque[Any](), dict[Any, Ended]()
        while True:
            for worker, item in zip(self.idle, waiting, strict=False):
                worker.give(item)
                given.append(item)
            if not given and self.idle:
                return
            ended |= {each.item: each for each in self.receive()}
            while given and given[0] in ended:
                yield ended.pop(given.popleft())

    def receive(self) -> Iterator[Ended]:
        """Starts the processes that are missing, waits a moment for messages, and yields the items
        that ended. Raises Inconclusive if no process can be started."""
        while len(self.workers) < self.size:
            self.workers.append(self._spawn())
        wait([worker.connection for worker in self.workers], timeout=0.5)
        for worker in list(self.workers):
            ended = worker.listen()
            if ended is None:
                continue
            if not worker.ready:
                self.starts_lost += 1
                killed = worker.process.exitcode == -signal.SIGKILL
                if not killed or self.starts_lost > STARTS_LOST:
                    raise Inconclusive(f"{self.failure}: {ended.why}")
            if worker.lost:
                worker.end()
                self.workers.remove(worker)
            if ended.item is not None:
                yield ended

    def _spawn(self) -> Worker:
        """Starts a process. It has one torch thread, and never sees Ctrl-C: its parent ends it."""
        ours, theirs = _CONTEXT.Pipe()
        key = secrets.token_hex(8)
        called = pickle.dumps((_work, key, self.start, self.megabytes))
        environment = {**os.environ, **ONE_THREAD}
        process = _CONTEXT.Process(target=begin, args=(theirs, environment, called), daemon=True)
        if _FORKS:
            module = getattr(self.start, "func", self.start).__module__
            _CONTEXT.set_forkserver_preload(["kvfuzz.search.preloaded", module])
        # The resource tracker would start with the first process, and unblock SIGINT when it does.
        resource_tracker.ensure_running()
        # A new process inherits the environment and the signal mask, so both hold from its first
        # moment: torch reads the environment when it is imported, before any code of ours runs.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _environment_of_imports():
                _begin(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return Worker(process, ours, key, self.seconds)


@dataclass(eq=False)
class Worker:
    """The parent's end of one process.

    `item` is what it does now, and `said` what it has said of that. It was last `heard` at that
    time, and should say something `within` so many seconds. `lost` means that it must be replaced.
    Its messages begin with `key`, which nothing else that is written into the pipe does.
    """

    process: Any
    connection: Connection
    key: str
    seconds: float
    ready: bool = False
    used: bool = False
    lost: bool = False
    item: Any = None
    said: dict[str, Any] = field(default_factory=dict)
    within: float = STARTING
    heard: float = field(default_factory=time.monotonic)

    def give(self, item: Any) -> None:
        """Sends an item to the process."""
        self.used, self.item, self.said = True, item, {}
        self.within, self.heard = self.seconds, time.monotonic()
        # If the process has just died, `listen` notices.
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(item).encode())

    def listen(self) -> Ended | None:
        """Reads what the process said; returns the end of its item, or of the process itself."""
        try:
            while self.connection.poll():
                key, said = json.loads(self.connection.recv_bytes(LONGEST_MESSAGE))
                if key != self.key:
                    raise ValueError("not a message of ours")
                ended = self._read(said)
                if ended is not None:
                    return ended
        except EOFError:
            return self._give_up("crashed", _describe_exit(self.process, GRACE))
        # A subject wrote into the pipe.
        except (OSError, ValueError, TypeError):
            return self._give_up("crashed", _describe_exit(self.process, 0))
        if time.monotonic() - self.heard > self.within + GRACE:
            over = f"over {self.within:g} s"
            return self._give_up("timed_out", f"{over}, in one call" if self.ready else over)
        return None

    def _read(self, said: dict[str, Any]) -> Ended | None:
        self.heard = time.monotonic()
        if "refused" in said:
            return Ended(None, lost="refused", why=said["refused"])
        if "megabytes" in said:
            return self._give_up("crashed", f"took more than {said['megabytes']} MB of memory")
        if "result" in said:
            ended = Ended(self.item, said["result"])
            self.item, self.within, self.lost = None, math.inf, "spoiled" in self.said
            return ended
        if "ready" in said:
            self.ready, self.within = True, math.inf
        self.within = said.get("within", self.within)
        self.said |= said
        return None

    def _give_up(self, lost: str, why: str) -> Ended:
        self.lost = True
        why = f"its process {why}" if lost == "crashed" else why
        why = why if self.ready else f"{why} when it started"
        return Ended(self.item, lost=lost, why=why, said=self.said)

    def end(self) -> None:
        """Kills the process and those that it started."""
        # It leads a process group of its own, by `setsid` in `_work`.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Gives torch one thread inside: more make small models many times slower, and change
    rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(process: Any) -> None:
    """Starts a process. The one that it is forked from may have been killed, as by a subject that
    writes into what it does not own; another one takes its place once the system has noticed."""
    until = time.monotonic() + GRACE
    while True:
        try:
            process.start()
            return
        except (OSError, EOFError):
            if time.monotonic() > until:
                raise
            time.sleep(WATCH)


@contextmanager
def _environment_of_imports() -> Iterator[None]:
    """Inside, a new process imports what this one would import, whatever its folder holds."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    new = {**ONE_THREAD, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in new}
    os.environ |= new
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _describe_exit(process: Any, seconds: float) -> str:
    """Returns how a process ends within so many seconds, in words. `join` would wait for ever if a
    subject wrote into the pipe whose end it waits for."""
    until = time.monotonic() + seconds
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(WATCH)
    code = process.exitcode
    if code is None:
        return "was cut off: something else wrote into its pipe"
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(connection: Connection, key: str, start: Callable[[], Work], megabytes: float) -> None:
    """Runs in a process: does the items that come over the pipe, until it closes."""
    os.setsid()  # A process group of its own, so that `Worker.end` kills what a subject started.
    multiprocessing.current_process().daemon = False  # A daemon may start no processes.
    torch.set_num_threads(1)
    lock, own, before = threading.Lock(), os.getpid(), list[float]()

    def say(**said: Any) -> None:
        if os.getpid() != own:
            os._exit(1)  # A subject forked, and this is the child, which must not answer.
        with lock:
            connection.send_bytes(json.dumps([key, said]).encode())

    threading.Thread(target=_watch, args=(megabytes, before, say), daemon=True).start()
    try:
        with kept_until_the_end():
            work = start()
    except KvfuzzError as error:
        say(refused=str(error))
        return
    before.append(_peak_memory())
    say(ready=True)
    with suppress(EOFError, OSError):
        while True:
            say(result=work(json.loads(connection.recv_bytes()), say))


def _watch(megabytes: float, before: list[float], say: Say) -> None:
    """Ends this process, and those that it started, when its parent is gone, or when its peak
    memory is more than `megabytes` above that `before` the first item."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while not wait([parent.sentinel], timeout=WATCH):
        if before and _peak_memory() - before[0] > megabytes:
            say(megabytes=megabytes)
            break
    os.killpg(0, signal.SIGKILL)


def _peak_memory() -> float:
    """Returns the peak memory of this process in MB."""
    if HIGH_WATER.exists():
        # On Linux, `getrusage` of a new process starts at the peak of its parent.
        (line,) = re.findall(r"VmHWM:\s*(\d+) kB", HIGH_WATER.read_text())
        return int(line) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1024 * 1024 if sys.platform == "darwin" else 1024)
