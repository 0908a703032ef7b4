"""Runs the rounds of a hunt in several processes.

Processes are spawned, not forked: a fork after torch has run crashes. Each has one torch thread:
more make every worker slower, and change rounding.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import ParamSpec, TypeVar

import torch

from kvfuzz.errors import Inconclusive
from kvfuzz.search.rounds import Plan, Tally, run_round
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory

P = ParamSpec("P")
T = TypeVar("T")


class _Executor(ProcessPoolExecutor):
    """An executor whose processes ignore Ctrl-C: the parent process ends them."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        # `submit` may start a process. It inherits the mask, so it ignores Ctrl-C from the start;
        # its initialiser runs only after the import of torch.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Gives processes that are started inside one torch thread. torch reads the environment when it
    is imported, which is before any code of ours runs in the process."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yields an executor of `workers` processes. At the end, drops work that has not begun; after
    Ctrl-C, also kills what runs."""
    others, spawn = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    executor = _Executor(workers, spawn, initializer=_prepare_worker)
    with one_thread_each():
        try:
            with _killing_when_interrupted(others):
                yield executor
        finally:
            with _killing_when_interrupted(others):
                executor.shutdown(cancel_futures=True)


@contextmanager
def _killing_when_interrupted(others: set[BaseProcess]) -> Iterator[None]:
    """Kills the child processes, except `others`, if the block is interrupted: waiting for their
    work could take minutes."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def run_rounds_in_processes(
    plan: Plan, workers: int, progress: Callable[[int], None] | None
) -> Tally:
    """Runs the rounds of `plan` up to the first failure; gives the same tally as `run_rounds`.

    Tallies are added in the order of the rounds, and rounds after the first failing one are
    ignored. Raises Inconclusive if a worker process dies.
    """
    total = Tally()
    running: deque[Future[Tally]] = deque()
    index = 0
    with pool(workers) as executor:
        try:
            while True:
                while (
                    len(running) < 2 * workers
                    and plan.round_size(index)
                    and (index == 0 or not plan.overdue)
                ):
                    running.append(executor.submit(_round_in_worker, plan, index))
                    index += 1
                if not running:
                    return total
                total += running.popleft().result()
                if progress is not None:
                    progress(total.cases)
                if total.failure is not None:
                    return total
        except BrokenProcessPool:
            raise Inconclusive(
                f"a worker process died while running {plan.subject}; run it again with -n 1 "
                f"--seed {plan.seed} to see where"
            ) from None


def _round_in_worker(plan: Plan, index: int) -> Tally:
    return run_round(_factory(plan.subject, plan.options), plan, index)


_FACTORIES: dict[str, Factory] = {}


def _factory(name: str, options: Options) -> Factory:
    """Returns the factory; loads it once per process."""
    key = repr((name, options))
    if key not in _FACTORIES:
        _FACTORIES[key] = load(name, options)
    return _FACTORIES[key]
