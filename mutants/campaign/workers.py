"""Judge mutants in processes of their own, which a fault may end, hang or fill without harm.

Work goes out and comes back as JSON, one mutant at a time. A process that dies, that says nothing
for too long or that takes too much memory is replaced, and only the mutant that it was judging is
blamed. Processes are spawned (a fork after torch has run crashes), have one torch thread each, and
end when the one that started them does.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from kvfuzz.errors import Inconclusive, KvfuzzError
from kvfuzz.search.pool import one_thread_each
from mutants.campaign.campaign import Campaign, Limits, read
from mutants.campaign.judge import judge_mutant, skip_mutant
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import MutantOutcome, Result
from mutants.library.registry import find

GRACE = 5.0
"""Seconds past a mutant's own before its process is killed: its own alarm comes first."""
STARTING = 300.0
"""Seconds for a process to import torch and load the subject."""
STARTS_LOST = 3
"""So many processes may be lost while they start: something else may have killed one."""
LONGEST_MESSAGE = 2**26
"""Bytes of a message: one that says it is longer is none of ours."""
WATCH = 0.05
"""Seconds between two looks at the memory of a process."""
HIGH_WATER = Path("/proc/self/status")
"""Where Linux tells the most memory that a process had, and macOS has nothing."""
_SPAWN = multiprocessing.get_context("spawn")


def judge_in_processes(
    campaign: Campaign, names: Sequence[str], workers: int, begin: Callable[[str], bool]
) -> Iterator[MutantOutcome]:
    """What becomes of each of the mutants called `names`, as it comes in, judged in `workers`
    processes. `begin` is called with each before it runs, and says whether it may.

    A mutant whose process dies, or in which the subject is changed after it, is judged once more,
    in a new one, and blamed if the same happens there: what it inherited from the one before may
    have been to blame. After one for which the subject was unsound no other is begun. Raises
    Inconclusive if a process cannot be started.
    """
    waiting, again = deque(names), set[str]()
    team = _Team(campaign)
    try:
        team.grow(min(workers, len(waiting)))
        while waiting or team.busy:
            for worker in team.idle:
                # For each that is to be judged again there is a new process, or one on its way.
                for name in [n for n in waiting if n not in again or not worker.used]:
                    waiting.remove(name)
                    if name in again or begin(name):
                        worker.give(name)
                        break
                    yield skip_mutant(find(name))
            for judged in team.came_in() if team.members else ():
                name = judged.result.id
                spoiled = judged.result.state == "crashed" or judged.changed is not None
                if spoiled and name not in again:
                    again.add(name)
                    waiting.appendleft(name)
                    continue
                if judged.unsound is not None:
                    waiting.clear()
                yield _blamed(judged)
    finally:
        team.end()


def _blamed(judged: MutantOutcome) -> MutantOutcome:
    """`judged`, for which a mutant that left the subject changed is invalid: its process is gone
    with the change, and others mean something."""
    if judged.changed is None:
        return judged
    result = judged.result
    return MutantOutcome(Result(result.id, result.operator, "invalid", reason=judged.changed))


class _LostAtStart(Inconclusive):
    """A process was lost before it could judge anything."""


@dataclass(eq=False)
class _Worker:
    """A process, and what it is at: the mutant, what it last said of it, when, and `within` how
    many seconds it should be heard of again. `lost` tells that it is no more."""

    process: Any
    connection: Connection
    limits: Limits
    ready: bool = False
    used: bool = False
    lost: bool = False
    mutant: str | None = None
    case: int | None = None
    known: Result | None = None
    within: float = 0.0
    heard: float = field(default_factory=time.monotonic)

    def give(self, mutant: str) -> None:
        self.used = True
        self.mutant, self.case, self.known, self.heard = mutant, None, None, time.monotonic()
        self.within = self.limits.seconds
        # One that has just died is found out when it is listened to.
        with suppress(OSError):
            self.connection.send_bytes(json.dumps({"mutant": mutant}).encode())

    def listen(self) -> MutantOutcome | None:
        """What has become of the mutant, once that is known."""
        try:
            while self.connection.poll():
                judged = self._heard(json.loads(self.connection.recv_bytes(LONGEST_MESSAGE)))
                if judged is not None:
                    return judged
        except EOFError:
            return self._gone("crashed", _ended(self._exit_code()))
        # A fault may write into the pipe as well.
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self._gone("crashed", _ended(self.process.exitcode))
        silent = time.monotonic() - self.heard
        if not self.ready and silent > STARTING:
            return self._gone("timed_out", f"took over {STARTING:g} s")
        if self.mutant is not None and silent > self.within + GRACE:
            return self._gone("timed_out", f"over {self.limits.seconds:g} s, in one call")
        return None

    def _exit_code(self) -> int | None:
        """That of a process that is about to end. (`join` waits for ever once a fault has written
        into the pipe by whose end it knows.)"""
        until = time.monotonic() + GRACE
        while self.process.exitcode is None and time.monotonic() < until:
            time.sleep(WATCH)
        code: int | None = self.process.exitcode
        return code

    def _heard(self, said: dict[str, Any]) -> MutantOutcome | None:
        self.heard = time.monotonic()
        if "failed" in said and not self.ready:
            raise Inconclusive(f"no mutant can be judged: {said['failed']}")
        if "megabytes" in said:
            return self._gone("crashed", f"took more than {said['megabytes']} MB of memory")
        if "judged" in said:
            judged = MutantOutcome.from_json(said["judged"])
            if judged.result.id != self.mutant:
                raise ValueError(f"{judged.result.id} was not asked for")
            self.mutant = None
            self.lost = judged.changed is not None
            return judged
        if "known" in said:
            self.known = Result.from_json(said["known"])
        self.within = said.get("within", self.within)
        self.ready = self.ready or "ready" in said
        self.case = said.get("case", self.case)
        return None

    def _gone(self, state: str, how: str) -> MutantOutcome | None:
        """The process is lost: its mutant, if it had one, is what it came to, or of that `state`,
        with the reason. Raises Inconclusive for a process that never came up."""
        self.lost = True
        how = f"its process {how}" if state == "crashed" else how
        if not self.ready:
            # Whoever waited for so long does not wait once more.
            lost = _LostAtStart if state == "crashed" else Inconclusive
            raise lost(f"no mutant can be judged: {how} when it started")
        if self.mutant is None:
            return None
        if self.known is not None:
            lacks = self.known.state == "killed" and self.known.witness is None
            return MutantOutcome(
                replace(self.known, reason=f"no witness: {how}") if lacks else self.known
            )
        where = "" if self.case is None else f" on case {self.case}"
        operator = find(self.mutant).operator
        return MutantOutcome(Result(self.mutant, operator, state, reason=how + where))

    def end(self) -> None:
        """Kill the process, and those that it has started itself."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass
class _Team:
    """The processes that judge `campaign`."""

    campaign: Campaign
    members: list[_Worker] = field(default_factory=list)
    starts_lost: int = 0

    @property
    def idle(self) -> list[_Worker]:
        return [worker for worker in self.members if worker.ready and worker.mutant is None]

    @property
    def busy(self) -> bool:
        return any(worker.mutant is not None for worker in self.members)

    def grow(self, size: int) -> None:
        for _ in range(size):
            self.members.append(self._new())

    def renew(self, worker: _Worker) -> None:
        """Put a new process in the place of `worker`."""
        worker.end()
        self.members[self.members.index(worker)] = self._new()

    def came_in(self) -> Iterator[MutantOutcome]:
        """What is known by now, after a moment's wait."""
        wait([worker.connection for worker in self.members], timeout=0.5)
        for worker in list(self.members):
            try:
                judged = worker.listen()
            except _LostAtStart:
                self.starts_lost += 1
                if self.starts_lost > STARTS_LOST:
                    raise
                judged = None
            if worker.lost:
                self.renew(worker)
            if judged is not None:
                yield judged

    def _new(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        arguments = theirs, json.dumps(self.campaign.to_json())
        process = _SPAWN.Process(target=_work, args=arguments, daemon=True)
        with one_thread_each(), _deaf():
            process.start()
        theirs.close()
        return _Worker(process, ours, self.campaign.limits)

    def end(self) -> None:
        for worker in self.members:
            worker.end()


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started inside never sees Ctrl-C: the one that started it ends it."""
    # It comes up with the first process otherwise, and then unblocks what is blocked here.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ended(code: int | None) -> str:
    if code is None:
        return "was cut off: something else wrote into the pipe by which it reports"
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(connection: Connection, campaign: str) -> None:
    """The life of a worker process."""
    os.setsid()  # so that it can be killed with whatever a fault has started
    _silence()
    torch.set_num_threads(1)
    lock, own = threading.Lock(), os.getpid()

    def say(**said: Any) -> None:
        if os.getpid() != own:
            os._exit(1)  # a fault has forked, and what it left goes on as if it were this process
        with lock:
            connection.send_bytes(json.dumps(said).encode())

    try:
        factory, read_campaign = read(json.loads(campaign))
    except KvfuzzError as error:
        say(failed=str(error))
        return
    prepared = PreparedCases(factory, read_campaign)
    watch = threading.Thread(target=_watch, args=(read_campaign.limits.megabytes, say), daemon=True)
    watch.start()
    say(ready=True)
    with suppress(EOFError, OSError):
        while True:
            item = json.loads(connection.recv_bytes())
            say(judged=judge_mutant(prepared, find(item["mutant"]), say).to_json())


def _silence() -> None:
    """What a fault prints is no part of a report."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def _watch(megabytes: int, say: Callable[..., None]) -> None:
    """End this process once the one that started it is gone, or once it has taken over `megabytes`
    more memory than it had at first."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    first = _most_memory()
    while not wait([parent.sentinel], timeout=WATCH):
        if _most_memory() - first > megabytes:
            say(megabytes=megabytes)
            break
    os._exit(1)


def _most_memory() -> float:
    """The most memory that this process has ever had, in MB."""
    if HIGH_WATER.exists():
        # In `getrusage` a process of Linux starts with what the one that started it had.
        (line,) = re.findall(r"VmHWM:\s*(\d+) kB", HIGH_WATER.read_text())
        return int(line) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1024 * 1024 if sys.platform == "darwin" else 1024)
