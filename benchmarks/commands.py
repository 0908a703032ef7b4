"""Whole commands, start included, against `import torch`, and the commands of the README."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.row import Measurement
from benchmarks.timing import KVFUZZ, ROOT, command_seconds, import_torch_seconds, interleave

PLAIN = f"{ROOT / 'benchmarks' / 'plain_decoder.py'}:PlainDecoder"
PLANTED = PLAIN.replace("PlainDecoder", "PlantedDecoder")


def help_text(repeats: int) -> Measurement:
    """`kvfuzz --help`, which imports no torch."""
    pairs = interleave(
        lambda: command_seconds((*KVFUZZ, "--help"))[0], import_torch_seconds, repeats
    )
    return Measurement(pairs)


def planted_bug(repeats: int) -> Measurement:
    """`kvfuzz fuzz` up to the verdict on a plain decoder of four layers with a bug: the case is
    shrunk and written, and not located."""
    words = ("fuzz", PLANTED, "--no-locate", "--seed", "0")
    found: list[dict[str, Any]] = []
    pairs = interleave(lambda: run_kvfuzz(words, found, (1,)), import_torch_seconds, repeats)
    case = found[0]["found"]["case"]
    evidence = f"diverged in case {found[0]['cases']}, shrunk to schedule {case['schedule']}"
    missed = [hunt for hunt in found if hunt["verdict"] != "diverged" or not hunt["shrunk"]]
    return Measurement(pairs, evidence, "it is not found and shrunk each time" if missed else None)


def clean_cases(repeats: int) -> Measurement:
    """`kvfuzz fuzz` on 200 cases of a plain decoder of four layers, which has no bug."""
    words = ("fuzz", PLAIN, "--examples", "200", "--seed", "0")
    found: list[dict[str, Any]] = []
    pairs = interleave(lambda: run_kvfuzz(words, found), import_torch_seconds, repeats)
    evidence = f"{found[0]['cases']} cases, {found[0]['read']} read their cache and agreed"
    wrong = [hunt for hunt in found if hunt["verdict"] != "agreed"]
    return Measurement(pairs, evidence, f"it {wrong[0]['verdict']}" if wrong else None)


def run_kvfuzz(
    words: Sequence[str], found: list[dict[str, Any]], codes: Sequence[int] = (0,)
) -> float:
    """Runs a command of kvfuzz in a new folder; returns its CPU seconds. Adds what `--json` writes
    to `found`."""
    with TemporaryDirectory() as name:
        file = Path(name) / "found.json"
        command = [*KVFUZZ, *words, "--json", str(file)]
        seconds, _ = command_seconds(command, Path(name), codes)
        found.append(json.loads(file.read_text(encoding="utf-8")))
        return seconds


def readme_command(which: str, repeats: int) -> Measurement:
    """The wall time of a command of the README, after the installation: `try` or `test`. On fewer
    than two idle cores it says nothing: read the load beside it."""
    commands = [_on_this_python(command) for command in _after_installation(which)]
    pairs = []
    for _ in range(repeats):
        with TemporaryDirectory() as name:
            folder = ROOT if which == "test" else Path(name)
            started = time.time()
            for command in commands:
                command_seconds(command, folder)
            pairs.append((time.time() - started, 1.0))
    return Measurement(tuple(pairs), "every command ended with 0")


def _after_installation(which: str) -> list[list[str]]:
    """Returns the commands of a line of the README that follow `pip install`, in words."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = [
        each
        for each in re.findall(r"^python3 -m venv .*$", text, re.MULTILINE)
        if ("pytest" in each) == (which == "test")
    ]
    return [part.split() for part in line.split(" && ")[2:]]


def _on_this_python(words: Sequence[str]) -> list[str]:
    """Returns a command of the README without its settings of the environment, which are set
    anyway, and with this interpreter."""
    first, *rest = [word for word in words if not re.fullmatch(r"\w+=\S+", word)]
    return [*(KVFUZZ if first.endswith("/kvfuzz") else (sys.executable,)), *rest]
