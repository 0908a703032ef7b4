"""What the noise floor, the fuzz loop and the score cost, as ratios to the bare passes that they
cannot avoid.

    python benchmarks/cost.py

Both sides of a ratio run in turn in one process, on one thread; medians over the repeats.

- floor: the noise of a case against one uncached pass of it, in the same lane: for the registered
  decoder, over the cases that a hunt draws, and for a module of 4 layers and 256 features.
- fuzz: a hunt (Hypothesis draws, models are built, both paths run, verdicts are made) against the
  bare passes of the same cases: one uncached and one stepwise cached run of models already built.
- score: the library in first-kill mode, start-up apart (cases drawn, uncached logits known),
  without shrinking, against one bare cached run per mutant of the case that kills it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import click
import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.oracle.noise import logits_noise
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, as_factory, load
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Refused, Rows, run_cached, run_uncached
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import check_unchanged, run_mutant
from mutants.library.registry import select

SEEDS = 5


@click.command()
@click.option("--subject", default="zoo", show_default=True)
@click.option("--examples", default=200, show_default=True)
@click.option("--repeats", default=7, show_default=True)
@click.option("--only-score", is_flag=True, help="Leave the floor and the fuzz loop out.")
def main(subject: str, examples: int, repeats: int, only_score: bool) -> None:
    torch.set_num_threads(1)
    if not only_score:
        _search(subject, examples, repeats)
    for seed in range(SEEDS if subject.startswith("zoo") else 0):
        _score(subject, seed, repeats)


def _search(subject: str, examples: int, repeats: int) -> None:
    """The floor and the fuzz loop."""
    for dtype in ("float64", "float32"):
        _floor("zoo:default", dtype, repeats)
        _floor("zoo", dtype, repeats)
        for batch in (2, 8):
            _module_floor(dtype, batch, repeats)
    factory = load(subject)
    space = space_of(factory)
    built = [(factory.subject(case), case) for case in draw_cases(space, 0, examples)]
    fuzzing = _ratios(
        lambda: fuzz(factory, examples=examples, seed=0),
        lambda: [_bare(item, case) for item, case in built],
        repeats,
    )
    _print(f"fuzz {subject}, {examples} cases", fuzzing)


def _floor(name: str, dtype: str, repeats: int) -> None:
    """Of the built-in decoder, on the cases of a hunt."""
    factory = load(name, Options(dtype=dtype))
    cases = draw_cases(space_of(factory), 0, 50)
    items = [(factory.subject(case), layout(case).sequences) for case in cases]
    _print(f"floor {name} {dtype}", _floor_ratios(items, dtype, repeats))


def _module_floor(dtype: str, batch: int, repeats: int) -> None:
    """Of a general torch module: what a subject's `model` is. Perturbing 3 million weights costs
    the same whatever the tokens."""
    subject = as_factory(Layers).build(0, dtype, {})
    rows = torch.randint(
        0, Layers.vocab_size, (batch, 64), generator=torch.Generator().manual_seed(0)
    )
    items = [(subject, tuple(map(tuple, rows.tolist())))]
    _print(
        f"floor torch module {dtype}, {batch} rows of 64 tokens",
        _floor_ratios(items, dtype, repeats),
    )


def _floor_ratios(
    items: list[tuple[Subject, Rows]], dtype: str, repeats: int
) -> list[tuple[float, float]]:
    kind = getattr(torch, dtype)
    found = [run_uncached(subject, rows) for subject, rows in items]
    return _ratios(
        lambda: [
            logits_noise(subject, rows, logits, kind)
            for (subject, rows), logits in zip(items, found, strict=True)
        ],
        lambda: [run_uncached(subject, rows) for subject, rows in items],
        repeats,
    )


class Layers:
    """Torch's own layers; the cache, which is not measured here, holds the tokens."""

    vocab_size, max_length = 64, 64

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(64, 256),
            torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            torch.nn.Linear(256, 64),
        ).eval()

    def uncached(self, tokens: Tensor) -> Tensor:
        embed, layers, readout = self.model
        mask = torch.nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], dtype=readout.weight.dtype
        )
        logits: Tensor = readout(layers(embed(tokens), mask=mask, is_causal=True))
        return logits

    def new_cache(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0, dtype=torch.int64)

    def cached(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat((cache, tokens), 1)
        return self.uncached(whole)[:, -tokens.shape[1] :], whole


def _score(subject: str, seed: int, repeats: int) -> None:
    """The ratio depends on the seed: on how many cases a mutant meets before its kill. Mutants that
    are equivalent meet all cases and have no kill to compare with; they are left out."""
    prepared = prepare_cases(subject, Options(), None, seed, shrink=False)
    scored = [mutant for mutant in select(subject)[0] if not mutant.equivalent]
    found = [(mutant, run_mutant(prepared, mutant)) for mutant in scored]
    killed = [(mutant, result) for mutant, result in found if result.killed_by is not None]
    kills = [prepared.reference(result.killed_by or 0, mutant) for mutant, result in killed]
    met = sum(result.ran for _, result in found)
    label = f"score {subject}, seed {seed}: {len(killed)} of {len(scored)} mutants, {met} cases met"

    def bare() -> None:
        for item in kills:
            _cached(item.subject, item.case)

    _print(
        label, _ratios(lambda: [run_mutant(prepared, mutant) for mutant in scored], bare, repeats)
    )
    looked_after = _ratios(
        lambda: [check_unchanged(prepared, m, run_mutant(prepared, m)) for m in scored],
        bare,
        repeats,
    )
    _print("  and with the clean decoder judged again after each", looked_after)


def _ratios(
    ours: Callable[[], object], bare: Callable[[], object], repeats: int
) -> list[tuple[float, float]]:
    """Seconds of both sides, run in turn."""
    ours(), bare()
    return [(_seconds(ours), _seconds(bare)) for _ in range(repeats)]


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _bare(subject: Subject, case: Case) -> None:
    run_uncached(subject, layout(case).sequences)
    _cached(subject, case)


def _cached(subject: Subject, case: Case) -> None:
    with suppress(Refused):
        run_cached(subject, case)


def _print(label: str, pairs: list[tuple[float, float]]) -> None:
    ratios = sorted(ours / bare for ours, bare in pairs)
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{label}: {statistics.median(ratios):.2f} times the bare passes "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}; {ours:.2f} s against {bare:.2f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
