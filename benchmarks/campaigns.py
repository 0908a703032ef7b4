"""Two workers against one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.commands import run_kvfuzz
from benchmarks.row import Measurement

CASES = 4000
"""The cases of a hunt that takes one worker about 20 s."""
TIMES = ("seconds", "witness")


def two_workers(repeats: int) -> Measurement:
    """The wall time of a hunt with one worker, start included, against that with two. Both must
    find the same. On fewer than two idle cores it says nothing."""
    words = ("fuzz", "zoo", "--seed", "0", "--examples", str(CASES))
    found: list[dict[str, Any]] = []
    pairs = tuple(
        (_wall((*words, "-n", "1"), found), _wall((*words, "-n", "2"), found))
        for _ in range(repeats)
    )
    same = all(_without_times(hunt) == _without_times(found[0]) for hunt in found)
    evidence = f"{CASES} cases, {min(one for one, _ in pairs):.1f} s with one worker"
    return Measurement(pairs, evidence, None if same else "two workers found otherwise")


def table(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the mutants of a report of a score, without what differs from run to run."""
    return [{k: v for k, v in one.items() if k not in TIMES} for one in report["mutants"]]


def _wall(words: Sequence[str], found: list[dict[str, Any]]) -> float:
    started = time.time()
    run_kvfuzz(words, found)
    return time.time() - started


def _without_times(hunt: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in hunt.items() if name != "seconds"}
