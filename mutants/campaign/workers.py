"""Judges mutants in worker processes, which a fault may kill, hang or fill.

Read from top to bottom: `judge_in_processes` hands out mutants; `_Worker` is the parent's end of
one process; `_Team` holds them all and replaces lost ones; `_work` is what runs in a process.

Work goes out and comes back as JSON over a pipe, one mutant at a time. A process that dies, is
silent for too long or takes too much memory is replaced. Processes are spawned, because a fork
after torch has run crashes. They have one torch thread each and end when their parent does.
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
from mutants.campaign.campaign import Campaign, Limits, read_campaign
from mutants.campaign.judge import judge_mutant, skip_mutant
from mutants.campaign.prepared_cases import PreparedCases
from mutants.campaign.result import MutantOutcome, Result
from mutants.library.registry import find

GRACE = 5.0
"""Seconds beyond a mutant's limit before its process is killed: its own alarm rings first."""
STARTING = 300.0
"""Seconds that a process has to import torch and load the subject."""
STARTS_LOST = 3
"""This many processes may be lost while they start: the system may kill one for lack of memory."""
LONGEST_MESSAGE = 2**26
"""Bytes of a message. A longer one is noise that a fault wrote into the pipe."""
WATCH = 0.05
"""Seconds between two measurements of a process's memory."""
HIGH_WATER = Path("/proc/self/status")
"""The file in which Linux reports the peak memory of a process; macOS has none."""
_SPAWN = multiprocessing.get_context("spawn")


def judge_in_processes(
    campaign: Campaign, names: Sequence[str], workers: int, begin: Callable[[str], bool]
) -> Iterator[MutantOutcome]:
    """Judges the mutants called `names` in `workers` processes; yields each outcome when known.
    `begin` is called with each name before it runs, and returns whether it may.

    A dead process does not prove the mutant guilty, because an earlier mutant may have left
    something behind. So that mutant is judged once more in a fresh process, and blamed if the same
    happens there; likewise if the subject was changed after it. If the clean subject is unsound, no
    other mutant begins. Raises Inconclusive if a process cannot be started.
    """
    waiting, again = deque(names), set[str]()
    team = _Team(campaign)
    try:
        team.grow(min(workers, len(waiting)))
        while waiting or team.busy:
            for worker in team.idle:
                # A mutant that is judged again waits for a fresh process, which is on its way.
                for name in [n for n in waiting if n not in again or not worker.used]:
                    waiting.remove(name)
                    if name in again or begin(name):
                        worker.give(name)
                        break
                    yield skip_mutant(find(name))
            for outcome in team.receive() if team.members else ():
                name = outcome.result.id
                spoiled = outcome.result.state == "crashed" or outcome.changed is not None
                if spoiled and name not in again:
                    again.add(name)
                    waiting.appendleft(name)
                    continue
                if outcome.unsound is not None:
                    waiting.clear()
                yield _blame(outcome)
    finally:
        team.end()


def _blame(outcome: MutantOutcome) -> MutantOutcome:
    """Returns the outcome to report. A mutant that left the subject changed is invalid. The
    change is gone with its process, so other results are right."""
    if outcome.changed is None:
        return outcome
    result = outcome.result
    return MutantOutcome(Result(result.id, result.operator, "invalid", reason=outcome.changed))


class _LostAtStart(Inconclusive):
    """A process was lost while it started."""


@dataclass(eq=False)
class _Worker:
    """The parent's end of one process.

    `mutant` is what it judges now, `case` the case that runs, `known` the result as far as it is
    known. It was last `heard` at that time, and should say something `within` so many seconds.
    `lost` means that it must be replaced.
    """

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
        """Sends a mutant to the process."""
        self.used = True
        self.mutant, self.case, self.known, self.heard = mutant, None, None, time.monotonic()
        self.within = self.limits.seconds
        # If the process has just died, `listen` notices.
        with suppress(OSError):
            self.connection.send_bytes(json.dumps({"mutant": mutant}).encode())

    def listen(self) -> MutantOutcome | None:
        """Reads what the process said; returns the outcome of its mutant once it is known."""
        try:
            while self.connection.poll():
                outcome = self._read(json.loads(self.connection.recv_bytes(LONGEST_MESSAGE)))
                if outcome is not None:
                    return outcome
        except EOFError:
            return self._give_up("crashed", _describe_exit(self._exit_code()))
        # Not a message of ours: a fault wrote into the pipe.
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self._give_up("crashed", _describe_exit(self.process.exitcode))
        silent = time.monotonic() - self.heard
        if not self.ready and silent > STARTING:
            return self._give_up("timed_out", f"took over {STARTING:g} s")
        if self.mutant is not None and silent > self.within + GRACE:
            return self._give_up("timed_out", f"over {self.limits.seconds:g} s, in one call")
        return None

    def _exit_code(self) -> int | None:
        """Returns the exit code of a process that is about to end. `join` would wait for ever if a
        fault wrote into the pipe whose end it waits for."""
        until = time.monotonic() + GRACE
        while self.process.exitcode is None and time.monotonic() < until:
            time.sleep(WATCH)
        code: int | None = self.process.exitcode
        return code

    def _read(self, said: dict[str, Any]) -> MutantOutcome | None:
        self.heard = time.monotonic()
        if "failed" in said and not self.ready:
            raise Inconclusive(f"no mutant can be judged: {said['failed']}")
        if "megabytes" in said:
            return self._give_up("crashed", f"took more than {said['megabytes']} MB of memory")
        if "judged" in said:
            outcome = MutantOutcome.from_json(said["judged"])
            if outcome.result.id != self.mutant:
                raise ValueError(f"{outcome.result.id} was not asked for")
            self.mutant = None
            self.lost = outcome.changed is not None
            return outcome
        if "known" in said:
            self.known = Result.from_json(said["known"])
        self.within = said.get("within", self.within)
        self.ready = self.ready or "ready" in said
        self.case = said.get("case", self.case)
        return None

    def _give_up(self, state: str, how: str) -> MutantOutcome | None:
        """Gives the process up. Returns the outcome of its mutant: the result that was known, or
        `state` with the reason. Raises Inconclusive if the process never started."""
        self.lost = True
        how = f"its process {how}" if state == "crashed" else how
        if not self.ready:
            # A start that timed out took STARTING seconds; it is not tried again.
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
        """Kills the process and those that it started."""
        # It leads a process group of its own, by `setsid` in `_work`.
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
        """Replaces the process of `worker`."""
        worker.end()
        self.members[self.members.index(worker)] = self._new()

    def receive(self) -> Iterator[MutantOutcome]:
        """Waits a moment for messages, and yields the outcomes that are known by then."""
        wait([worker.connection for worker in self.members], timeout=0.5)
        for worker in list(self.members):
            try:
                outcome = worker.listen()
            except _LostAtStart:
                self.starts_lost += 1
                if self.starts_lost > STARTS_LOST:
                    raise
                outcome = None
            if worker.lost:
                self.renew(worker)
            if outcome is not None:
                yield outcome

    def _new(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        arguments = theirs, json.dumps(self.campaign.to_json())
        process = _SPAWN.Process(target=_work, args=arguments, daemon=True)
        with one_thread_each(), _ignore_interrupts():
            process.start()
        theirs.close()
        return _Worker(process, ours, self.campaign.limits)

    def end(self) -> None:
        for worker in self.members:
            worker.end()


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Processes started inside never see Ctrl-C; their parent ends them.

    A child inherits the signal mask, so it is deaf from its first moment, before Python runs.
    """
    # The resource tracker would start with the first process, and unblock SIGINT when it does.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _describe_exit(code: int | None) -> str:
    """Returns how a process ended, in words."""
    if code is None:
        return "was cut off: something else wrote into its pipe"
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(connection: Connection, campaign: str) -> None:
    """Runs in a worker process: judges the mutants that come over the pipe, until it closes."""
    os.setsid()  # A process group of its own, so that `_Worker.end` kills what a fault started.
    _discard_output()
    torch.set_num_threads(1)
    lock, own = threading.Lock(), os.getpid()

    def say(**said: Any) -> None:
        if os.getpid() != own:
            os._exit(1)  # A fault forked, and this is the child, which must not answer.
        with lock:
            connection.send_bytes(json.dumps(said).encode())

    try:
        factory, parsed = read_campaign(json.loads(campaign))
    except KvfuzzError as error:
        say(failed=str(error))
        return
    prepared = PreparedCases(factory, parsed)
    limits = (parsed.limits.megabytes, say)
    threading.Thread(target=_end_when_over, args=limits, daemon=True).start()
    say(ready=True)
    with suppress(EOFError, OSError):
        while True:
            item = json.loads(connection.recv_bytes())
            say(judged=judge_mutant(prepared, find(item["mutant"]), say).to_json())


def _discard_output() -> None:
    """Discards what a fault prints, which is not part of a report."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def _end_when_over(megabytes: int, say: Callable[..., None]) -> None:
    """Ends this process when its parent is gone, or when its peak memory has grown by more than
    `megabytes`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    first = _peak_memory()
    while not wait([parent.sentinel], timeout=WATCH):
        if _peak_memory() - first > megabytes:
            say(megabytes=megabytes)
            break
    os._exit(1)


def _peak_memory() -> float:
    """Returns the peak memory of this process in MB."""
    if HIGH_WATER.exists():
        # On Linux, `getrusage` of a new process starts at the peak of its parent.
        (line,) = re.findall(r"VmHWM:\s*(\d+) kB", HIGH_WATER.read_text())
        return int(line) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1024 * 1024 if sys.platform == "darwin" else 1024)
