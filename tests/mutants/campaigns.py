"""What the tests of campaigns share: faults of other packages, and tables without times."""

import os
import sys
import time
from dataclasses import replace

from tests.subjects import models

HEAD = """import ctypes, os, signal, sys, time
import torch
from mutants.mutant import mutant, steps
"""
KILLED = "norm.skips_before_attention"
SEVERAL = (
    "append.prepends",
    "crop.leaves_its_slots_in_sight",
    KILLED,
    "position.restarts_at_each_chunk",
    "reorder.goes_the_other_way",
)


def fault_text(name, body, subject="zoo"):
    """A mutant as source; `body` is what its function does."""
    return (
        f"@mutant('store', site='0.cache', witness=steps(1), subject={subject!r})\n"
        f"def {name}(real):\n"
        f'    """The fault {name}."""\n' + "".join(f"    {line}\n" for line in body.splitlines())
    )


def install(folder, name, source):
    """A package called `name` that offers the mutants of `source`, in `folder`."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[kvfuzz.mutants]\n{name} = {name}\n")
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")


def path_with(folder):
    """A PYTHONPATH by which processes find what is installed in `folder`."""
    return os.pathsep.join([str(folder), *sys.path])


def table(score):
    """The results of `score` without what may differ from run to run: how long each took."""
    watched = (*score.placebos, *score.canaries)
    return [replace(result, seconds=0.0) for result in (*score.results, *watched)]


class Sleeps(models.Summing):
    """A right decoder whose cached path takes longer than anybody waits."""

    def cached(self, tokens, cache):
        """In a while."""
        time.sleep(0.6)
        return super().cached(tokens, cache)


def processes_started(folder):
    """How many worker processes imported the package that is installed in `folder`."""
    pids = set((folder / "started").read_text().split())
    return len(pids - {str(os.getpid())})
