"""Measure the honest difference of narrow decoders: behind the constants of
`kvfuzz.oracle.tolerance` that are fallen back to where noise cannot be measured.

    python benchmarks/narrow_tolerance.py --checks 20000 --dtype float64

A check is one clean case of a decoder with a residual stream below 8: random configuration, scale,
tokens, rows, schedule. Printed per width: quantiles of the check's largest |cached - uncached| in
units of eps x the row's largest |logit|; and what the factor in force costs in detection, as the
share of checks on which cached values too large by a factor 1 + d are told from none.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import click
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvfuzz.case.case import Case
from kvfuzz.case.dtypes import DTYPES
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.tolerance import constant, factor
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.zoo.config import NORMS, POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder

SIZES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
WIDE = 8
SHAPES = [(h, d) for h in (1, 2, 3) for d in (1, 2, 3, 4, 5, 6, 7) if 1 < h * d < WIDE]
BANDS = {"below 4": (2, 3), "4 to 7": (4, 7)}


@click.command()
@click.option("--checks", default=20_000, show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default="float64", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--faulty-every", default=20, show_default=True, help="Detection: one check in N.")
def main(checks: int, dtype: str, seed: int, faulty_every: int) -> None:
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    ratios: dict[int, list[float]] = defaultdict(list)
    caught: dict[str, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    drawn = track(_cases(checks, dtype, seed), description=dtype, total=checks)
    for number, (decoder, case) in enumerate(drawn):
        ratios[decoder.width].append(_ratio(decoder, decoder, case))
        if number % faulty_every:
            continue
        band = next(name for name, (low, high) in BANDS.items() if low <= decoder.width <= high)
        for size in SIZES:
            faulty = Faulty(decoder, ["kvfuzz.subjects.zoo.cached:store"], _scaled(size))
            ratio = _ratio(faulty, decoder, case)
            caught[f"{band}, own factor"][size].append(ratio > factor(kind, decoder.width))
            caught[f"{band}, factor of 8"][size].append(ratio > factor(kind, WIDE))
    _print(dtype, ratios, caught)


def _cases(checks: int, dtype: str, seed: int) -> Iterator[tuple[Decoder, Case]]:
    rng = random.Random(f"{seed} {dtype}")
    for number in range(checks):
        heads, head_dim = rng.choice(SHAPES)
        positions = rng.choice([p for p in POSITIONS if p != "rope" or head_dim % 2 == 0])
        config = DecoderConfig(
            layers=rng.choice((1, 2, 3)),
            heads=heads,
            kv_heads=rng.choice([k for k in (1, 2, 3) if heads % k == 0]),
            head_dim=head_dim,
            positions=positions,
            norm=rng.choice(NORMS),
            window=rng.choice((None, 3, 5)),
            scale=rng.choice((0.7, 1.0, 2.0)),
        )
        length = rng.randint(2, 20)
        schedule = _schedule(rng, length)
        rows = tuple(
            tuple(rng.randrange(config.vocab_size) for _ in range(length))
            for _ in range(rng.randint(1, 3))
        )
        yield Decoder(config, seed=number, dtype=dtype), Case(rows, schedule, dtype=dtype)


def _schedule(rng: random.Random, length: int) -> tuple[int, ...]:
    if rng.random() < 1 / 3:
        return (1,) * length
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(rng.randint(1, length - sum(sizes)))
    return tuple(sizes)


def _ratio(subject: object, clean: Decoder, case: Case) -> float:
    """The case's largest |difference| in units of eps x the row's largest |logit|."""
    expected = run_uncached(clean, case.tokens)
    actual = run_cached(subject, case)  # type: ignore[arg-type]
    comparison = compare(actual, expected, constant(expected, None, expected.dtype))
    return float(comparison.excess.max()) * factor(expected.dtype, None)


def _scaled(size: float):  # type: ignore[no-untyped-def]
    def fault(real):  # type: ignore[no-untyped-def]
        return lambda cache, layer, key, value: real(cache, layer, key, value * (1 + size))

    return fault


def _print(
    dtype: str,
    ratios: dict[int, list[float]],
    caught: dict[str, dict[float, list[bool]]],
) -> None:
    console = Console()
    table = Table(title=f"{dtype}: clean checks", box=box.SIMPLE)
    for heading in ("width", "checks", "median", "99 %", "99.9 %", "largest", "factor"):
        table.add_column(heading, justify="right")
    bands = {str(width): [width] for width in sorted(ratios)}
    bands |= {name: list(range(low, high + 1)) for name, (low, high) in BANDS.items()}
    for label, widths in bands.items():
        ordered = sorted(value for width in widths for value in ratios[width])
        places = (min(len(ordered) - 1, int(q * len(ordered))) for q in (0.5, 0.99, 0.999, 1.0))
        cells = [f"{ordered[place]:.3g}" for place in places]
        in_force = factor(getattr(torch, dtype), widths[0])
        table.add_row(label, str(len(ordered)), *cells, f"{in_force:g}")
    console.print(table)
    costs = Table(title="caught of cached values too large by 1 + d, in %", box=box.SIMPLE)
    for heading in ("d", *sorted(caught)):
        costs.add_column(heading, justify="right")
    for size in SIZES:
        found = (caught[name][size] for name in sorted(caught))
        costs.add_row(f"{size:g}", *(f"{100 * sum(f) / len(f):.1f}" for f in found))
    console.print(costs)


if __name__ == "__main__":
    main()
