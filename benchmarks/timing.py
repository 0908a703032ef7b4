"""Measures CPU time, both sides of a ratio in turn."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_TORCH = (sys.executable, "-c", "import torch")
KVFUZZ = (sys.executable, "-m", "kvfuzz.cli.main")


def interleave(
    ours: Callable[[], object], against: Callable[[], object], repeats: int, warm: bool = False
) -> tuple[tuple[float, float], ...]:
    """Returns the CPU seconds of both sides, run in turn, `repeats` times, and once more before
    unless they are `warm`.

    A side that leaves a part of its work out of the time returns its own seconds, as a float.
    """
    if not warm:
        ours(), against()
    return tuple((cpu_seconds(ours), cpu_seconds(against)) for _ in range(repeats))


def cpu_seconds(action: Callable[[], object]) -> float:
    """Returns the CPU seconds of `action` in this process, or those that it returns."""
    started = time.process_time()
    told = action()
    return told if isinstance(told, float) else time.process_time() - started


def command_seconds(
    words: Sequence[str], folder: Path | None = None, codes: Sequence[int] = (0,)
) -> tuple[float, str]:
    """Runs a command, on one torch thread; returns its CPU seconds, those of its children included,
    and what it printed. Raises RuntimeError if it ends with none of `codes`."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled, too
    started = _children_seconds()
    done = subprocess.run(
        list(words), cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    seconds = _children_seconds() - started
    if done.returncode not in codes:
        told = (done.stderr or done.stdout)[-500:]
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {told}")
    return seconds, done.stdout


def import_torch_seconds() -> float:
    """Returns the CPU seconds of a process that imports torch."""
    return command_seconds(IMPORT_TORCH)[0]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
