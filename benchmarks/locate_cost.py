"""The cost of locating: the whole of `kvfuzz.locate` against the two plain runs of the case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import kvfuzz
from benchmarks.faulty_decoders import FaultyDecoder
from benchmarks.row import Measurement, NotRun
from benchmarks.timing import command_seconds, import_torch_seconds, interleave
from kvfuzz.case.layout import layout
from kvfuzz.localize.location import Location
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import run_cached, run_uncached
from mutants.library.mutant_scheme import with_mutant
from mutants.library.registry import find
from tests.quality.injected.bench import Bench
from tests.quality.injected.copies import RELEASE, installed_release
from tests.quality.injected.faults import FAULTS

PROGRAMS = {"prefill": (6, 1, 1), "decode": (1,) * 20, "long": (62, 1, 1)}
"""Rows of 8 and of 64 tokens, of which the first decode goes wrong, and rows of 20, of which the
second token does."""


FRESH = """
import time, torch
started = time.process_time()
import kvfuzz
from benchmarks.faulty_decoders import ThreeOperations
found = kvfuzz.locate(ThreeOperations, kvfuzz.Case(((1, 2, 3, 4, 5, 6, 7, 8),), (6, 1, 1)))
print(time.process_time() - started, found.first.source.text)
"""


def decoder(layers: int, program: str, repeats: int) -> Measurement:
    """Of a decoder written by hand with torch's own modules."""

    def at_its_line(found: Location) -> bool:
        return found.first is not None and "# the fault" in str(found.first.source.text)

    return _measure(as_factory(lambda: FaultyDecoder(layers)), program, repeats, at_its_line)


def zoo(program: str, repeats: int) -> Measurement:
    """Of the built-in decoder, which reports its states."""
    fault = find("position.stops_after_the_prompt")

    def at_its_site(found: Location) -> bool:
        return found.first is not None and found.first.site == fault.site

    return _measure(with_mutant(as_factory("zoo"), fault), program, repeats, at_its_site)


def llama(program: str, repeats: int) -> Measurement:
    """Of a copy of transformers' llama, whose positions are one too far."""
    if installed_release() != RELEASE:
        raise NotRun(f"needs transformers {RELEASE}, got {installed_release()}")
    fault = next(fault for fault in FAULTS if fault.name == "llama.position_one_too_far")
    with TemporaryDirectory() as folder, Bench(Path(folder)).injected(fault) as injected:

        def at_its_line(found: Location) -> bool:
            return injected.hit(injected.line(found)) in ("injected", "reached")

        return _measure(injected.factory, program, repeats, at_its_line)


def three_operations(repeats: int) -> Measurement:
    """Of a decoder of three operations, whose plain runs take next to no time: in a process that
    has imported torch, with the import of kvfuzz."""
    named: list[str] = []

    def located() -> float:
        _, told = command_seconds((sys.executable, "-c", FRESH))
        seconds, line = told.strip().split(" ", 1)
        named.append(line)
        return float(seconds)

    pairs = interleave(located, import_torch_seconds, repeats)
    wrong = [line for line in named if "# the fault" not in line]
    return Measurement(pairs, "at the line of the fault", f"it named {wrong[0]}" if wrong else None)


def _measure(
    factory: Factory, program: str, repeats: int, is_right: Callable[[Location], bool]
) -> Measurement:
    """Locates the fault of `factory` in two rows, in float64, against the two plain runs; both on a
    subject that is built."""
    torch.set_num_threads(1)
    schedule, most = PROGRAMS[program], factory.limits().vocab_size
    rows = (
        tuple((11 * row + 7 * at + 3) % most for at in range(sum(schedule))) for row in range(2)
    )
    case = kvfuzz.Case(tuple(rows), schedule, 0, "float64", factory.first_config())
    subject = factory.subject(case)
    found: list[Location] = []

    def plain() -> None:
        run_uncached(subject, layout(case).sequences)
        run_cached(subject, case)

    built = replace(factory, build=lambda *_: subject)
    pairs = interleave(lambda: found.append(kvfuzz.locate(built, case)), plain, repeats)
    wrong = [one for one in found if not is_right(one)]
    first = found[0].first
    return Measurement(
        pairs,
        f"{first.site} in step {first.step + 1}" if first else "",
        "it is not located at its fault" if wrong else None,
    )
