"""Measures what `kvfuzz locate` costs, in multiples of the two plain runs of the case.

    python benchmarks/locate_cost.py
    python benchmarks/locate_cost.py --only llama --steps 2 --steps 9

Each fault is located by programs of so many steps. The figure is the one that `kvfuzz locate`
prints: the time of locating over that of one plain uncached and one plain cached run, both measured
in the same call, in wall clock on one thread; the median and the largest of the repeats. It leaves
out which paths agree, which a hunt has found already; the last column is the whole call, with that.

Exit code 1 if a median is above 10.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import torch

import kvfuzz

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvfuzz.case.layout import layout
from kvfuzz.subjects.loading import Options, as_factory, load
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import run_cached, run_uncached
from tests.quality.injected.bench import Bench
from tests.quality.injected.faults import FAULTS
from tests.subjects import decoders, faulty_decoders

MOST = 10.0
"""The highest median cost that passes."""
PROGRAM = (3, 1, 2, 1, 1, 2, 1, 1, 3)
COPIES = (
    "llama.position_one_too_far",
    "llama.logits_scaled",
    "gpt2.position_one_too_far",
    "gemma2.norm_gain",
)
WRITTEN = {
    "decoder, heads": decoders.decoder(mixer=faulty_decoders.SharesTheWrongWay),
    "decoder, fused": decoders.decoder(mixer=faulty_decoders.SplitsInAnotherOrder),
    "decoder, kernel": decoders.decoder(mixer=faulty_decoders.KernelWithoutScale),
    "decoder, late": decoders.decoder(block=faulty_decoders.AddsTwice),
    "decoder, room": faulty_decoders.WritesEarlyDecoder,
    "decoder, recurrent": type(
        "ForgetsItsGateDecoder",
        (decoders.RecurrentDecoder,),
        {"mixer": faulty_decoders.ForgetsItsGate},
    ),
    "decoder, clean": decoders.Decoder,
}


@dataclass(frozen=True)
class Cost:
    """Multiples of the plain runs: the printed cost, and that of the whole call."""

    printed: float
    whole: float


@click.command()
@click.option("--only", default="", help="Subjects whose name holds this.", metavar="NAME")
@click.option("--steps", multiple=True, type=click.IntRange(1, 9), default=(2, 3, 5, 9))
@click.option("--repeats", default=7, show_default=True, type=click.IntRange(1))
def main(only: str, steps: tuple[int, ...], repeats: int) -> None:
    torch.set_num_threads(1)
    above = False
    with tempfile.TemporaryDirectory() as folder:
        for name, factory, vocabulary in _subjects(Bench(Path(folder)), only):
            for count in steps:
                costs = _costs(factory, _case(factory, count, vocabulary), repeats)
                middle = statistics.median(cost.printed for cost in costs)
                above |= middle > MOST
                click.echo(
                    f"{name:28} {count} steps: {middle:5.1f}, at most "
                    f"{max(cost.printed for cost in costs):5.1f}; whole call "
                    f"{statistics.median(cost.whole for cost in costs):5.1f}"
                )
    sys.exit(1 if above else 0)


def _subjects(bench: Bench, only: str) -> Iterator[tuple[str, Factory, int]]:
    """Yields the subjects with their names and vocabulary sizes. Mamba of transformers needs no
    injected fault: it is wrong when a chunk follows a state."""
    for fault in FAULTS:
        if fault.name in COPIES and only in fault.name:
            with bench.injected(fault) as injected:
                yield fault.name, injected.factory, 64
    if only in "mamba":
        yield "mamba", load("transformers:mamba", Options(dtype="float64")), 64
    for name, subject in WRITTEN.items():
        if only in name:
            yield name, as_factory(subject), decoders.VOCAB


def _case(factory: Factory, steps: int, vocabulary: int) -> kvfuzz.Case:
    schedule = PROGRAM[:steps]
    tokens = tuple(
        tuple((11 * row + 7 * at + 3) % vocabulary for at in range(sum(schedule)))
        for row in range(2)
    )
    dtype = "float64" if "float64" in factory.dtypes else factory.dtypes[0]
    return kvfuzz.Case(tokens, schedule, 1, dtype, factory.first_config())


def _costs(factory: Factory, case: kvfuzz.Case, repeats: int) -> list[Cost]:
    """Returns the costs of so many calls, after one to warm up."""
    subject = factory.subject(case)
    kvfuzz.locate(factory, case)
    costs = []
    for _ in range(repeats):
        started = time.perf_counter()
        run_uncached(subject, layout(case).sequences)
        run_cached(subject, case)
        between = time.perf_counter()
        found = kvfuzz.locate(factory, case)
        whole = (time.perf_counter() - between) / (between - started)
        if found.cost is not None:
            costs.append(Cost(found.cost, whole))
    return costs


if __name__ == "__main__":
    main()
