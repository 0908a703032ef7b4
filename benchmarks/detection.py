"""Detection limits: the smallest fault that is caught on at least 99 of 100 random decoders.

    python benchmarks/detection.py -n 4                          # 200 decoders per dtype and fault
    python benchmarks/detection.py --models 20                   # a quick look
    python benchmarks/detection.py -n 4 --picture detection.svg  # also draw it (needs matplotlib)
    python benchmarks/detection.py -n 4 --scales 0.1 8           # weights of any scale

A decoder is one random configuration, weight scale, rows of tokens and schedule. The cached logits
of each fault are judged by several policies, all against the same uncached logits. A policy that is
not kvfuzz's is judged as it stands ("raw"), where it may have false alarms, and rescaled: its bound
moved to 1.5 x the most that any clean decoder comes to, so that it has none. Clean decoders have
1 to 8 layers and widths from 4 on, as those that a hunt draws may; faults are put into decoders of
2 to 4 layers and a width of 8 or more.

Exit code 1 if a promise of the library fails: a parametric mutant is caught at its own size on
fewer than 99 %, or a rounded cache or a position off by one on fewer than all.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import click
import torch
from detection_picture import draw_rates, load_pyplot
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.oracle.agreement import compare_logits
from kvfuzz.oracle.reference import Reference, find_reference
from kvfuzz.oracle.tolerance import factor
from kvfuzz.subjects.dtypes import epsilon
from kvfuzz.subjects.run import run_cached
from kvfuzz.subjects.zoo.config import NORMS, POSITIONS, DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.library.registry import find, library
from mutants.mutant import Mutant

SPAWN = get_context("spawn")  # a fork after torch has run crashes
DTYPES = ("float64", "float32")
SHARE = 99  # in %: what counts as caught, and what a parametric mutant promises
LEAST_CLEAN = 1000  # clean decoders per dtype, whatever --models is
RANGE = (0.7, 2.0)  # the scales that a hunt draws from
ROOM = 1.5  # a rescaled bound, in units of the most that a clean decoder comes to

# Powers of ten and 3 times them; in float32 a smaller size would be lost in the factor 1 + size.
SMALLEST = {"float64": -15, "float32": -8}
SIZES = {
    dtype: [float(f"{digit}e{power}") for power in range(least, -1) for digit in (1, 3)] + [0.1]
    for dtype, least in SMALLEST.items()
}
# The table of learned positions is multiplied by these: the smaller, the less a position matters.
TABLES = {
    dtype: [float(f"1e{-power}") for power in range(most + 1)]
    for dtype, most in (("float64", 8), ("float32", 5))
}

# A fault in a way to tell positions needs decoders that have it; the others take any decoder.
NEEDS = {
    "phase.angles_too_large": "rope",
    "phase.slopes_too_large": "alibi",
    "position.drifts_to_the_next_record": "learned",
}
ROUNDINGS = ("dtype.rounds_to_float16", "dtype.rounds_to_bfloat16", "dtype.rounds_to_int8")
OFF_BY_ONE = "position.one_too_far"

POLICIES = ("kvfuzz", "fixed bound", "assert_close", "eps x scale")
FIXED = {"float64": 1e-12, "float32": 1e-5}
CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5)}  # assert_close's (rtol, atol)

WIDTHS = range(8, 65)
# With one head ALiBi's only slope is 2^-8, and a fault in it 16 times smaller than with two.
SHAPES = [(h, d) for h in (2, 3, 4, 6, 8) for d in range(2, 33) if h * d in WIDTHS]
NARROW = [(1, 4), (2, 2), (2, 3), (3, 2), (1, 6)]


Ratios = tuple[float, ...]
"""What a check comes to, for each of POLICIES, in units of that policy's raw bound."""


@dataclass(frozen=True)
class Job:
    """One decoder: number `number` of those with these `positions` ("any": drawn too), and whether
    faults are put into it."""

    dtype: str
    positions: str
    number: int
    seed: int
    scales: tuple[float, float]
    faulty: bool = True


@dataclass
class Outcome:
    """What the checks of a job's decoder came to: clean, clean with each scaled table, and with
    each fault (id, size)."""

    case: Case
    clean: Ratios
    clean_scaled: list[Ratios] = field(default_factory=list)
    faulty: dict[tuple[str, float], Ratios] = field(default_factory=dict)


@dataclass
class Study:
    """The outcomes of one dtype."""

    dtype: str
    clean: list[Ratios] = field(default_factory=list)
    clean_scaled: list[Ratios] = field(default_factory=list)
    faulty: dict[tuple[str, float], list[tuple[Ratios, Case]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, outcome: Outcome) -> None:
        self.clean.append(outcome.clean)
        self.clean_scaled += outcome.clean_scaled
        for key, ratios in outcome.faulty.items():
            self.faulty[key].append((ratios, outcome.case))

    @property
    def decoders(self) -> int:
        """How many decoders each fault was put into."""
        return max(map(len, self.faulty.values()))

    def without_alarms(self, policy: int, scaled: bool = False) -> float:
        """The bound at which this policy has no false alarm, in units of its raw bound; nor on
        decoders whose table of positions is `scaled`, which are held to a bound of their own."""
        checks = [*self.clean, *self.clean_scaled] if scaled else self.clean
        return ROOM * max(ratios[policy] for ratios in checks)

    def misses(self, key: tuple[str, float], policy: int = 0, bound: float = 1.0) -> list[Any]:
        """The (ratios, case) of the decoders on which the fault stays within `bound`."""
        return [miss for miss in self.faulty[key] if not miss[0][policy] > bound]

    def percent(self, key: tuple[str, float], policy: int = 0, bound: float = 1.0) -> float:
        """The share of decoders on which the fault is caught."""
        return 100 - 100 * len(self.misses(key, policy, bound)) / len(self.faulty[key])

    def limit(self, fault: str, policy: int, bound: float) -> str:
        """The smallest size that is caught on SHARE of the decoders, as all larger ones are."""
        found = None
        for size in sorted((s for name, s in self.faulty if name == fault), reverse=True):
            if self.percent((fault, size), policy, bound) < SHARE:
                break
            found = size
        return "> 0.1" if found is None else f"{found:.0e}"


@click.command()
@click.option("--models", default=200, show_default=True, help="Decoders per dtype and fault.")
@click.option("-n", "workers", default=1, show_default=True, help="Processes.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--scales",
    nargs=2,
    default=RANGE,
    show_default=True,
    help="Least and largest scale of the weights. Promises are made for the default.",
)
@click.option("--picture", metavar="FILE.svg", help="Draw the rates of two faults.")
def main(
    models: int, workers: int, seed: int, scales: tuple[float, float], picture: str | None
) -> None:
    if picture:
        load_pyplot()  # say what is missing now, not after the measurement
    studies = {dtype: Study(dtype) for dtype in DTYPES}
    jobs = list(_jobs(models, seed, scales))
    with ProcessPoolExecutor(workers, SPAWN, torch.set_num_threads, (1,)) as executor:
        outcomes = executor.map(_measured, jobs, chunksize=4)
        progress = Console(stderr=True)
        outcomes = track(outcomes, "decoders", len(jobs), console=progress)
        for job, outcome in zip(jobs, outcomes, strict=True):
            studies[job.dtype].add(outcome)
    console = Console(width=130, highlight=False)
    for study in studies.values():
        for table in (_alarms(study), _limits(study), _rates(study)):
            console.print(table)
    if picture:
        draw_rates(studies, picture, SIZES, SHARE)
    if scales != RANGE:
        console.print("Promises are made for weights of the default scales: not checked.")
        return
    missed = [found for study in studies.values() for found in _missed(study)]
    for _, line in missed:
        console.print(line, markup=False, soft_wrap=True)
    broken = sum(breaks for breaks, _ in missed)
    console.print(f"{broken} promises are broken." if broken else "All promises hold.")
    sys.exit(1 if broken else 0)


def _jobs(models: int, seed: int, scales: tuple[float, float]) -> Iterator[Job]:
    for dtype in DTYPES:
        kinds = ("any", *sorted(set(NEEDS.values())))
        for positions in kinds:
            for number in range(models):
                yield Job(dtype, positions, number, seed, scales)
        for number in range(models, LEAST_CLEAN - (len(kinds) - 1) * models):
            yield Job(dtype, "any", number, seed, scales, faulty=False)


def _measured(job: Job) -> Outcome:
    """All checks of one decoder."""
    config, case = _drawn(job)
    decoder = Decoder(config, seed=case.seed, dtype=job.dtype)
    expected = find_reference(decoder, case)
    outcome = Outcome(case, _ratios(decoder, case, expected))
    if not job.faulty:
        return outcome
    for mutant in _parametric(job.positions):
        for size in sorted({*SIZES[job.dtype], mutant.size(job.dtype)}):
            faulty = mutant.into(decoder, job.dtype, size)
            outcome.faulty[mutant.id, size] = _ratios(faulty, case, expected)
    if job.positions == "any":
        for name in ROUNDINGS:
            faulty = find(name).into(decoder, job.dtype)
            outcome.faulty[name, 1.0] = _ratios(faulty, case, expected)
    if job.positions == "learned":
        _measure_tables(decoder, case, outcome)
    return outcome


def _measure_tables(decoder: Decoder, case: Case, outcome: Outcome) -> None:
    """A position off by one, where positions matter less and less to both paths."""
    table = decoder.model.weights().position
    drawn = table.clone()
    for size in TABLES[case.dtype]:
        with torch.no_grad():
            table.copy_(drawn * size)
        expected = find_reference(decoder, case)
        outcome.clean_scaled.append(_ratios(decoder, case, expected))
        faulty = find(OFF_BY_ONE).into(decoder, case.dtype)
        outcome.faulty[OFF_BY_ONE, size] = _ratios(faulty, case, expected)


def _parametric(positions: str) -> list[Mutant]:
    """The mutants with a size whose decoders have these `positions`."""
    sized = (mutant for mutant in library().values() if mutant.sizes and mutant.subject == "zoo")
    return [mutant for mutant in sized if NEEDS.get(mutant.id, "any") == positions]


def _ratios(subject: Any, case: Case, expected: Reference) -> Ratios:
    """The largest difference of the cached path of `subject`, as each policy sees it. The first is
    the excess by which `kvfuzz.oracle.agreement.check_against` judges."""
    actual = run_cached(subject, case)
    assert expected.logits is not None
    uncached = expected.logits.double()
    difference = (actual.double() - uncached).abs()
    scale = uncached.abs().amax(-1, keepdim=True)
    rtol, atol = CLOSE[case.dtype]
    bounds = (FIXED[case.dtype], atol + rtol * uncached.abs(), _per_scale(case.dtype) * scale)
    excess: Tensor = compare_logits(actual, expected, case).excess
    return (float(excess.max()), *(float((difference / bound).max()) for bound in bounds))


def _per_scale(dtype: str) -> float:
    """The bound that kvfuzz falls back to where it cannot measure, in units of the scale."""
    kind = getattr(torch, dtype)
    return factor(kind, None) * epsilon(kind)


def _drawn(job: Job) -> tuple[DecoderConfig, Case]:
    """A decoder and a case on which every fault applies: two layers or more, a query that sees
    several slots, several steps."""
    rng = random.Random(f"{job.seed} {job.dtype} {job.positions} {job.number}")
    positions = rng.choice(POSITIONS) if job.positions == "any" else job.positions
    offered = SHAPES if job.faulty or rng.random() < 0.5 else NARROW
    shapes = [(h, d) for h, d in offered if positions != "rope" or d % 2 == 0]
    heads, head_dim = rng.choice(shapes)
    settings = {
        "layers": rng.choice((2, 3, 4)) if job.faulty else rng.randint(1, 8),
        "heads": heads,
        "kv_heads": rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        "head_dim": head_dim,
        "positions": positions,
        "norm": rng.choice(NORMS),
        "window": rng.choice((None, None, 3, 5, 8)),
        "scale": rng.choice((job.scales[0], 1.0, job.scales[1], rng.uniform(*job.scales))),
    }
    config = DecoderConfig(**settings)
    length = rng.randint(4, 32)
    vocabulary = range(config.vocab_size)
    rows = tuple(tuple(rng.sample(vocabulary, length)) for _ in range(rng.randint(1, 3)))
    return config, Case(rows, _schedule(rng, length), rng.randrange(2**16), job.dtype, settings)


def _schedule(rng: random.Random, length: int) -> tuple[int, ...]:
    family = rng.choice(("one by one", "prefill", "chunks"))
    if family == "one by one":
        return (1,) * length
    if family == "prefill":
        prefill = rng.randint(2, length - 1)
        return (prefill, *(1,) * (length - prefill))
    sizes = [rng.randint(1, length - 1)]
    while sum(sizes) < length:
        sizes.append(rng.randint(1, min(6, length - sum(sizes))))
    return tuple(sizes)


def _columns(study: Study, scaled: bool = False) -> list[tuple[str, int, float]]:
    """(heading, policy, bound): kvfuzz as it stands, the others raw and rescaled."""
    columns = [(POLICIES[0], 0, 1.0)]
    for policy, name in enumerate(POLICIES[1:], start=1):
        heading = name.replace("_", "_\n").replace("d b", "d\nb").replace("x ", "x\n")
        columns.append((f"{heading}\nraw", policy, 1.0))
        columns.append((f"{heading}\nrescaled", policy, study.without_alarms(policy, scaled)))
    return columns


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for number, heading in enumerate(headings):
        justify: Any = "right" if number else "left"
        table.add_column(heading, justify=justify, vertical="bottom", no_wrap=True)
    return table


def _alarms(study: Study) -> Table:
    title = f"{study.dtype}: {len(study.clean)} clean decoders"
    title += f", and {len(study.clean_scaled)} with scaled positions"
    headings = ("raw\nbound", "false\nalarms", "largest /\nraw bound", "rescaled\nbound")
    table = _table(title, "policy", "unit", *headings, "rescaled,\nscaled positions")
    rtol, atol = CLOSE[study.dtype]
    raw = (
        ("the allowed", 1.0),
        ("1", FIXED[study.dtype]),
        (f"{atol:g} + {rtol:g} |logit|", 1.0),
        ("eps x scale", factor(getattr(torch, study.dtype), None)),
    )
    for policy, (unit, bound) in enumerate(raw):
        ratios = [clean[policy] for clean in study.clean]
        alarms = 100 * sum(ratio > 1 for ratio in ratios) / len(ratios)
        cells = [unit, f"{bound:g}", f"{alarms:.1f} %", f"{max(ratios):.2g}"]
        if policy:
            rescaled = (study.without_alarms(policy, scaled) for scaled in (False, True))
            cells += [f"{bound * multiple:.3g}" for multiple in rescaled]
        table.add_row(POLICIES[policy], *cells)
    return table


def _limits(study: Study) -> Table:
    columns = _columns(study)
    title = f"{study.dtype}: the smallest size caught on {SHARE} % of {study.decoders} decoders"
    table = _table(title, "fault", "promised", *(heading for heading, _, _ in columns))
    for mutant in _sized():
        promised = f"{mutant.sizes[study.dtype]:.0e}" if study.dtype in mutant.sizes else ""
        cells = (study.limit(mutant.id, policy, bound) for _, policy, bound in columns)
        table.add_row(mutant.id, promised, *cells)
    return table


def _rates(study: Study) -> Table:
    columns = _columns(study)
    title = (
        f"{study.dtype}: faults without a size, caught on so many % of {study.decoders} decoders"
    )
    table = _table(title, "fault", *(heading for heading, _, _ in columns))
    for key in _unsized(study):
        name, size = key
        if name == OFF_BY_ONE:
            name += f", positions x {size:.0e}"
            columns = _columns(study, scaled=True)
        cells = (f"{study.percent(key, policy, bound):.1f}" for _, policy, bound in columns)
        table.add_row(name, *cells)
    return table


def _sized() -> list[Mutant]:
    return [mutant for kind in ("any", *NEEDS.values()) for mutant in _parametric(kind)]


def _unsized(study: Study) -> list[tuple[str, float]]:
    tables = [(OFF_BY_ONE, size) for size in TABLES[study.dtype]]
    return [*((name, 1.0) for name in ROUNDINGS), *tables]


def _missed(study: Study) -> Iterator[tuple[bool, str]]:
    """For each promised fault that is missed on some decoder: whether that breaks the promise, and
    the decoder on which it shows least."""
    promised = {
        (mutant.id, mutant.sizes[study.dtype]): SHARE
        for mutant in _sized()
        if study.dtype in mutant.sizes
    }
    promised |= dict.fromkeys(_unsized(study), 100)
    for key, share in promised.items():
        misses = study.misses(key)
        if not misses:
            continue
        ratios, case = min(misses, key=lambda miss: miss[0][0])
        broken = study.percent(key) < share
        yield (
            broken,
            f"{'BROKEN' if broken else 'missed'}: {key[0]} ({key[1]:g}) in {study.dtype} on "
            f"{len(misses)} of {len(study.faulty[key])} decoders; least on the following, where it "
            f"comes to {ratios[0]:.3g} x the allowed: {json.dumps(case.to_json())}",
        )


if __name__ == "__main__":
    main()
