"""A limit on wall-clock time, for faults that never return."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 1.0
"""Seconds between two alarms: long enough for what the first one raised to get out."""


class OutOfTime(BaseException):
    """The limit has passed. Not an Exception, so that no model's `except Exception` keeps it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[Callable[[], None]]:
    """Raise OutOfTime inside this context once `seconds` have passed, and every AGAIN seconds
    after that, for a fault that swallows it; at the latest when the context is left.

    Gives a function that raises OutOfTime past the limit: call it between cases, where no fault
    can swallow it. Works by an alarm signal, so only in a process's main thread (elsewhere only
    that function and the end of the context tell), and only between Python instructions. A fault
    that swallows it every time and never returns hangs all the same: that takes a parent process
    that kills this one (`kvfuzz.search.pool`).
    """
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() >= end:
            raise OutOfTime

    with _alarm(seconds):
        yield check
    check()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inside = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        # Not while the alarm is being taken away, which would leave it ringing.
        if inside:
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            yield
        finally:
            inside = False
    # Also where it has rung between the end of the block and the line above.
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
