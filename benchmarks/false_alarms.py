"""False alarms at scale: over a million positions of clean decoders, how near to its bound?

    python benchmarks/false_alarms.py -n 2                          # 1,000,000 positions and more
    python benchmarks/false_alarms.py --positions 20000             # fewer
    python benchmarks/false_alarms.py --check float32:zoo:17        # one of its checks again

A check is one clean decoder, zoo or tiny transformers model, with random weights, tokens, rows and
schedule. Printed per dtype and family: quantiles over checks of the largest |cached - uncached| as
a multiple of what is allowed there, and the alarms, which are above 1. Counted beside them:
positions that rounding hides (weak), and checks whose paths gave the very same bits (identical),
whose noise could not be measured, whose uncached path did not agree with itself (prefixwise), or
that overflowed to NaN (discarded). Then, per dtype, the check that came nearest and any other above
half the bound. Exit code 1 if there is an alarm.

Every check has a seed of its own, of --seed, its dtype, family and index, so the same checks are
made whatever the number of processes.
"""

from __future__ import annotations

import math
import random
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count, groupby, pairwise
from multiprocessing import get_context

import click
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kvfuzz.case.case import Case
from kvfuzz.case.dtypes import DTYPES
from kvfuzz.errors import UsageError
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import find_reference
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory, Subject
from kvfuzz.subjects.run import seeded
from kvfuzz.subjects.zoo.config import NORMS, POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder

SPAWN = get_context("spawn")  # a fork after torch has run crashes
DTYPE_SHARES = {"float64": 0.2, "float32": 0.4, "bfloat16": 0.2, "float16": 0.2}
FAMILY_SHARES = {"zoo": 0.8, "transformers": 0.2}
MODELS = ("gpt2", "llama", "mistral", "gemma2", "qwen2")
LONGEST = {"zoo": 512, "transformers": 64}
MOST_STEPS = 60
MOST_ROWS = 64
# What one uncached pass may cost. The noise takes five of them in float64, side by side, whose
# attention weights are what needs memory.
MOST_MULTIPLICATIONS = 1.5e8
MOST_WEIGHTS = 1e6
HALF = 0.5
CHUNK = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """The checks of one dtype and family, by which they are counted."""

    dtype: str
    family: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What check number `index` of a lane found, and `what` it ran."""

    index: int
    status: str
    positions: int
    weak_positions: int
    excess: float
    basis: str | None
    prefixwise: bool
    what: str


@click.command()
@click.option("--positions", default=1_000_000, show_default=True, help="How many, at least.")
@click.option("--seed", default=0, show_default=True)
@click.option("-n", "workers", default=1, show_default=True, help="Processes.")
@click.option("--check", "only", metavar="DTYPE:FAMILY:INDEX", help="Make one check alone.")
def main(positions: int, seed: int, workers: int, only: str | None) -> None:
    torch.set_num_threads(1)
    console = Console(width=160)
    outcomes = _again(seed, only) if only else _run(positions, seed, workers)
    console.print(_table(outcomes))
    for dtype in DTYPES:
        _print_nearest(console, dtype, outcomes)
    largest = max(o.excess for found in outcomes.values() for o in found)
    alarms = sum(o.excess > 1 for found in outcomes.values() for o in found)
    console.print(
        f"{alarms} false alarms; the largest excess is {largest:.3f} of the bound", end=""
    )
    console.print(", above half of it" if largest > HALF else ", within half of it")
    sys.exit(1 if alarms else 0)


def _again(seed: int, name: str) -> dict[Lane, list[Outcome]]:
    """The check that a printed line calls `name`."""
    dtype, _, rest = name.partition(":")
    family, _, index = rest.partition(":")
    if dtype not in DTYPE_SHARES or family not in FAMILY_SHARES or not index.isdecimal():
        raise click.BadParameter(f"{name!r} is not as in float32:zoo:17", param_hint="--check")
    lane = Lane(dtype, family)
    return {lane: [_checked(seed, lane, int(index))]}


def _run(positions: int, seed: int, workers: int) -> dict[Lane, list[Outcome]]:
    """The checks of every lane, in order, up to its share of `positions`."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    clocks = (TimeElapsedColumn(), TimeRemainingColumn())
    found: dict[Lane, list[Outcome]] = {}
    with (
        ProcessPoolExecutor(workers, SPAWN, torch.set_num_threads, (1,)) as executor,
        Progress(*columns, *clocks, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=positions)
        for family, family_share in FAMILY_SHARES.items():
            for dtype, share in DTYPE_SHARES.items():
                lane, wanted = Lane(dtype, family), math.ceil(positions * share * family_share)
                progress.update(bar, description=f"{family} {dtype}")
                found[lane] = []
                for outcome in _until(wanted, _in_order(executor, workers, seed, lane)):
                    found[lane].append(outcome)
                    progress.advance(bar, outcome.positions + outcome.weak_positions)
    return found


def _until(wanted: int, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """As many of `outcomes` as have `wanted` positions."""
    made = 0
    while made < wanted:
        outcome = next(outcomes)
        made += outcome.positions + outcome.weak_positions
        yield outcome


def _in_order(
    executor: ProcessPoolExecutor, workers: int, seed: int, lane: Lane
) -> Iterator[Outcome]:
    """The outcomes of checks 0, 1, 2, ..., without end. A chunk more than there are processes is
    under way; what is not asked for is dropped."""
    running: deque[Future[list[Outcome]]] = deque()
    starts = count(0, CHUNK)
    try:
        while True:
            while len(running) < workers + 1:
                running.append(executor.submit(_chunk, seed, lane, next(starts)))
            yield from running.popleft().result()
    finally:
        for future in running:
            future.cancel()


def _chunk(seed: int, lane: Lane, start: int) -> list[Outcome]:
    return [_checked(seed, lane, index) for index in range(start, start + CHUNK)]


def _checked(seed: int, lane: Lane, index: int) -> Outcome:
    """Check number `index` of the lane. The subject is judged as a hunt judges it, but without the
    second run over the prefix by which an accusation is held back there."""
    rng = random.Random(f"{seed} {lane.dtype} {lane.family} {index}")
    draw = _zoo if lane.family == "zoo" else _transformers
    subject, case, what = draw(rng, lane.dtype)
    with seeded(case.seed):
        verdict = check_against(find_reference(subject, case), subject, case)
    where = (
        f", worst at row {verdict.worst[0]}, position {verdict.worst[1]}" if verdict.worst else ""
    )
    why = verdict.error or verdict.reason
    return Outcome(
        index,
        verdict.status,
        verdict.positions,
        verdict.weak_positions,
        verdict.excess,
        verdict.basis,
        verdict.prefixwise,
        f"{what}, {_described(case)}{where}{f' ({why})' if why else ''}",
    )


def _zoo(rng: random.Random, dtype: str) -> tuple[Subject, Case, str]:
    config, length, rows = next(_affordable(rng))
    case = _case(rng, dtype, config.vocab_size, length, rows)
    fields = ", ".join(f"{name}={value}" for name, value in asdict(config).items())
    return Decoder(config, seed=case.seed, dtype=dtype), case, f"zoo {fields}"


def _affordable(rng: random.Random) -> Iterator[tuple[DecoderConfig, int, int]]:
    """Configurations, lengths and numbers of rows that fit the limits together, so that long rows
    and many of them go with small decoders."""
    while True:
        length = _log_uniform(rng, 2, LONGEST["zoo"])
        rows = _rows(rng)
        config = _config(rng, length)
        weights = rows * config.heads * length**2
        per_token = config.layers * (12 * config.width**2 + 2 * length * config.width)
        per_token += config.vocab_size * config.width
        cost = rows * length * per_token
        if config.width <= 256 and weights <= MOST_WEIGHTS and cost <= MOST_MULTIPLICATIONS:
            yield config, length, rows


def _config(rng: random.Random, length: int) -> DecoderConfig:
    width = _log_uniform(rng, 4, 256)
    heads = rng.choice([n for n in (1, 2, 3, 4, 6, 8) if n <= width])
    positions = rng.choice(POSITIONS)
    head_dim = math.ceil(width / heads)
    if positions == "rope":
        head_dim += head_dim % 2
    return DecoderConfig(
        layers=rng.randint(1, 8),
        heads=heads,
        kv_heads=rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        head_dim=head_dim,
        vocab_size=rng.randint(64, 256),
        max_length=length,
        positions=positions,
        norm=rng.choice(NORMS),
        window=rng.choice((None, _log_uniform(rng, 1, length))),
        scale=round(rng.uniform(0.7, 2.0), 3),
    )


def _transformers(rng: random.Random, dtype: str) -> tuple[Subject, Case, str]:
    factory = _factory(rng.choice(MODELS), rng.choice(("eager", "sdpa")), dtype)
    config = {name: rng.choice(values) for name, values in factory.choices.items()}
    subject = factory.build(0, dtype, config)
    length = _log_uniform(rng, 2, LONGEST["transformers"])
    case = _case(rng, dtype, subject.vocab_size, length, _rows(rng))
    fields = ", ".join(f"{name}={value}" for name, value in {**factory.fixed, **config}.items())
    return factory.build(case.seed, dtype, config), case, f"{factory.name} {fields}"


@lru_cache
def _factory(model: str, attention: str, dtype: str) -> Factory:
    """Tiny models, with eager attention where they have no other."""
    try:
        return load(f"transformers:{model}", Options(dtype=dtype, config={"attn": attention}))
    except UsageError:
        if attention == "eager":
            raise
        return _factory(model, "eager", dtype)


def _case(rng: random.Random, dtype: str, vocab_size: int, length: int, rows: int) -> Case:
    """Random tokens; in one case of five of very few kinds, since equal keys are a corner."""
    few = rng.random() < 0.2
    kinds = rng.sample(range(vocab_size), rng.randint(1, 3) if few else vocab_size)
    tokens = tuple(tuple(rng.choices(kinds, k=length)) for _ in range(rows))
    return Case(tokens, _schedule(rng, length), seed=rng.randrange(2**31), dtype=dtype)


def _schedule(rng: random.Random, length: int) -> tuple[int, ...]:
    """Token by token, a prefill and then decodes, or chunks; in MOST_STEPS or so."""
    style = rng.choice(("ones", "prefill", "chunks"))
    if style == "ones" and length <= MOST_STEPS:
        return (1,) * length
    if style == "chunks":
        cuts = rng.sample(range(1, length), rng.randint(0, min(length - 1, MOST_STEPS)))
        edges = [0, *sorted(cuts), length]
        return tuple(b - a for a, b in pairwise(edges))
    decodes = rng.randint(1, min(length - 1, MOST_STEPS))
    return (length - decodes, *(1,) * decodes)


def _rows(rng: random.Random) -> int:
    """Mostly few: another decoder says more than another row of the same."""
    return _log_uniform(rng, 1, rng.choice((4, 16, MOST_ROWS)))


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return min(most, int(math.exp(rng.uniform(math.log(least), math.log(most + 1)))))


def _described(case: Case) -> str:
    runs = ((size, len(list(same))) for size, same in groupby(case.schedule))
    steps = " ".join(f"{size}x{times}" if times > 1 else str(size) for size, times in runs)
    return (
        f"model seed {case.seed}, {case.batch} rows of {case.length} tokens of "
        f"{len({token for row in case.tokens for token in row})} kinds, schedule [{steps}]"
    )


def _table(outcomes: dict[Lane, list[Outcome]]) -> Table:
    table = Table(box=box.SIMPLE, title="excess: |cached - uncached| / allowed, per check")
    headings = ("dtype", "family", "checks", "positions", "weak", "identical", "unmeasured")
    quantiles = ("prefixwise", "discarded", "median", "99 %", "99.9 %", "largest", "alarms")
    for heading in (*headings, *quantiles):
        table.add_column(heading, justify="right")
    for dtype in DTYPES:
        for lane, found in outcomes.items():
            if lane.dtype == dtype:
                table.add_row(dtype, lane.family, *_cells(found))
    table.add_section()
    table.add_row("all", "", *_cells([o for found in outcomes.values() for o in found]))
    return table


def _cells(found: list[Outcome]) -> list[str]:
    compared = [o for o in found if o.status != "discarded"]
    ordered = sorted(o.excess for o in compared) or [0.0]
    places = (min(len(ordered) - 1, int(q * len(ordered))) for q in (0.5, 0.99, 0.999, 1.0))
    counts = (
        len(found),
        sum(o.positions + o.weak_positions for o in found),
        sum(o.weak_positions for o in found),
        sum(o.excess == 0 for o in compared),
        sum(o.basis == "constant" for o in found),
        sum(o.prefixwise for o in found),
        len(found) - len(compared),
    )
    cells = [f"{n:,}" for n in counts] + [f"{ordered[place]:.3f}" for place in places]
    return [*cells, str(sum(o.excess > 1 for o in found))]


def _print_nearest(console: Console, dtype: str, outcomes: dict[Lane, list[Outcome]]) -> None:
    """The check of `dtype` that came nearest to its bound, and the others above half of it."""
    pairs = [(lane, o) for lane, found in outcomes.items() for o in found if lane.dtype == dtype]
    pairs.sort(key=lambda pair: -pair[1].excess)
    for place, (lane, outcome) in enumerate(pairs):
        if place == 0 or outcome.excess > HALF:
            name = f"{lane.dtype}:{lane.family}:{outcome.index}"
            text = f"{name} excess {outcome.excess:.3f}: {outcome.what}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
