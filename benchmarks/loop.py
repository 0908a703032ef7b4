"""The fuzz loop against the bare passes of its cases, and the check of one long row.

*Bare* is one uncached pass and one cached run of the same schedule, in the same dtype, rows
batched, on subjects that are built and hold their weights already. The loop draws its cases, builds
their subjects, judges agreement and a companion law, measures noise and corrupts caches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import torch

import kvfuzz
from benchmarks.plain_decoder import PlainDecoder
from benchmarks.row import Measurement, NotRun
from benchmarks.timing import interleave
from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.oracle.laws import COMPANIONS, NEEDED
from kvfuzz.search.hunt import Hunt
from kvfuzz.search.judge import Judgement, judge
from kvfuzz.search.known_divergences import Expectation, read_expectations
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import Factory, Limits, Subject, offers_of
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached

EXAMPLES = 200
EXCLUSIONS = Path(__file__).parent / "exclusions" / "transformers.json"
MAMBA2 = Expectation(
    "transformers:mamba2",
    "in transformers 5.24.0 the convolution mixes padding into a later chunk",
    elements=("mask",),
)
"""Ends a hunt on mamba2, and so would end the loop: these cases are judged and counted."""


def fuzz_loop(subject: str, repeats: int) -> Measurement:
    """A hunt of 200 cases with all laws, against the bare passes of the cases that it judged."""
    torch.set_num_threads(1)
    factory = _load(subject)
    recording = _Recording(**vars(factory))
    hunt = _hunt(recording)
    if hunt.failure is not None:
        return Measurement((), changed=f"false alarm: {hunt.failure.case}")
    # The cases that run in bfloat16 and float16, as users run them, are counted by no hunt.
    cases = [case for case in recording.seen if case.dtype in factory.dtypes]
    if len(cases) != hunt.cases:
        raise RuntimeError(f"{hunt.cases} cases were judged and {len(cases)} recorded")
    built = [(factory.subject(case), case) for case in cases]
    bare_seconds(built)
    pairs = interleave(lambda: _hunt(factory), lambda: bare_seconds(built), repeats, warm=True)
    evidence = (
        f"{hunt.cases} cases, {hunt.read} read their cache and agreed, {hunt.weak} weak, "
        f"{hunt.vacuous} vacuous, {sum(hunt.expected.values())} known, 0 alarms"
    )
    return Measurement(pairs, evidence, None if hunt.verdict == "agreed" else f"it {hunt.verdict}")


def many_rows(count: int, repeats: int) -> Measurement:
    """Judging cases of so many rows as a hunt does, against their bare passes.

    A hunt draws at most four rows, so these are the plain cases of a hunt on the built-in decoder
    with more rows. Casts are not traced: a hunt does so once for each setting and kind of step.
    """
    torch.set_num_threads(1)
    factory = load("zoo")
    recording = _Recording(**vars(factory))
    _hunt(recording)
    plain = [case for case in recording.seen if case.is_simple]
    built = [(factory.subject(case), case) for case in plain]
    wide = [(subject, _widen(case, count, subject.vocab_size)) for subject, case in built]

    def judge_all() -> list[Judgement]:
        return [
            judge(subject, case, _law(subject, number), trace=False)
            for number, (subject, case) in enumerate(wide)
        ]

    alarms = sum(each.verdict.diverged for each in judge_all())
    pairs = interleave(judge_all, lambda: bare_seconds(wide), repeats)
    evidence = f"{len(wide)} cases, {alarms} alarms"
    return Measurement(pairs, evidence, f"{alarms} alarms" if alarms else None)


def all_prefixes(length: int, repeats: int) -> Measurement:
    """The check of two rows of `length` tokens, fed one by one, against that many cached steps and
    one uncached pass. Casts are not traced, as in `many_rows`."""
    torch.set_num_threads(1)
    factory = as_factory(PlainDecoder)
    draw = random.Random(length)
    tokens = tuple(
        tuple(draw.randrange(PlainDecoder.vocab_size) for _ in range(length)) for _ in range(2)
    )
    case = Case(tokens, (1,) * length, dtype="float32")
    subject = factory.subject(case)
    verdict = kvfuzz.check(subject, case, trace=False)
    pairs = interleave(
        lambda: kvfuzz.check(subject, case, trace=False),
        lambda: bare_seconds([(subject, case)]),
        repeats,
    )
    evidence = f"{verdict.positions} positions {verdict.status}"
    return Measurement(pairs, evidence, None if verdict.status == "agreed" else evidence)


def bare_seconds(built: Sequence[tuple[Subject, Case]]) -> float:
    """Returns the CPU seconds of the bare passes. What fills a module with the weights of its
    subject is left out."""
    seconds = 0.0
    for subject, case in built:
        getattr(subject, "model", None)
        started = time.process_time()
        run_uncached(subject, layout(case).sequences)
        with suppress(Refused, CachedPathRaised):
            run_cached(subject, case)
        seconds += time.process_time() - started
    return seconds


@dataclass(frozen=True)
class _Recording(Factory):
    """A factory that keeps the cases whose subjects a hunt asks for."""

    seen: list[Case] = field(default_factory=list)

    def subject(self, case: Case) -> Subject:
        self.seen.append(case)
        return super().subject(case)

    def limits(self) -> Limits:
        found = super().limits()
        self.seen.clear()  # its one case belongs to no hunt
        return found


def _load(subject: str) -> Factory:
    if subject.startswith("transformers:") and find_spec("transformers") is None:
        raise NotRun("transformers is not installed")
    return load(subject)


def _hunt(factory: Factory) -> Hunt:
    known = (*read_expectations(EXCLUSIONS), MAMBA2)
    return kvfuzz.fuzz(factory, examples=EXAMPLES, seed=0, expected=known, locate=False)


def _widen(case: Case, count: int, vocab_size: int) -> Case:
    """Returns `case` with so many rows, distinct where its length allows."""
    draw = random.Random(repr(case))
    rows = list(case.tokens)
    while len(rows) < count:
        rows.append(tuple(draw.randrange(vocab_size) for _ in range(case.length)))
    return replace(case, tokens=tuple(rows))


def _law(subject: Subject, number: int) -> str:
    offers = offers_of(subject)
    laws = [law for law in COMPANIONS if NEEDED.get(law, "") in (*offers, "")]
    return laws[number % len(laws)]
