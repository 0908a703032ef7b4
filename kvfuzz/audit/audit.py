"""The audit of the trained checkpoint: compares cached and uncached logits on every prefix of every
pattern, sabotages the cache, measures its memory, and compares generation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from kvfuzz.audit.findings import Audit, AuditRow, Generation, largest
from kvfuzz.audit.generate import Sampling, generate_cached, generate_uncached
from kvfuzz.audit.sabotage import (
    SABOTAGES,
    Pattern,
    Sabotage,
    one_by_one,
    position_differences,
    sabotage,
)
from kvfuzz.errors import one_line
from kvfuzz.subjects.injection import FaultyCache
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, run_cached

# The float32 boundary of the source text. It holds for this checkpoint and corpus only; other
# decoders round differently: see kvfuzz.oracle.tolerance.
BOUNDARY = 1e-5

PROMPT = 2  # tokens of each pattern that generation starts from: they identify the pattern
SAMPLING = Sampling(temperature=2.0, top_k=4, seed=0)

# By name: the zoo imports kvfuzz, and kvfuzz imports no zoo.
CHECKPOINT = "kvfuzz.subjects.zoo.checkpoint"
CACHE = "kvfuzz.subjects.zoo.cache"


def audit(
    *,
    checkpoint: Any = None,
    wrap: Callable[[Subject], Subject] | None = None,
    sabotages: Sequence[Sabotage] = SABOTAGES,
    tolerance: float = BOUNDARY,
) -> Audit:
    """Audits the trained checkpoint on one torch thread.

    `checkpoint` is a result of `kvfuzz.subjects.zoo.checkpoint.train` (default: trains one). `wrap`
    replaces its decoder by another subject with the same cache, so that tests can make each check
    fail. The result is the same each time on one build of torch. Raises InvalidSubject if the
    training does not reach its bound.
    """
    zoo = importlib.import_module(CHECKPOINT)
    with zoo.one_thread():
        trained = checkpoint or zoo.train()
        subject = wrap(trained.decoder) if wrap else trained.decoder
        lengths = range(1, len(zoo.PATTERNS[0]) + 1)
        return Audit(
            tolerance=tolerance,
            rows=tuple(_row(subject, p, length) for length in lengths for p in zoo.PATTERNS),
            sabotages=tuple(
                sabotage(subject, known, zoo.PATTERNS, tolerance) for known in sabotages
            ),
            generations=tuple(
                _generation(subject, pattern[:PROMPT], sampling)
                for sampling in (None, SAMPLING)
                for pattern in zoo.PATTERNS
            ),
            loss=trained.loss,
            max_loss=zoo.MAX_LOSS,
            recipe=asdict(trained.recipe),
            torch=torch.__version__,
        )


def schedules(length: int) -> Iterator[tuple[int, ...]]:
    """Yields every way to feed `length` tokens in chunks, first one token per step."""
    if length == 0:
        yield ()
    for first in range(1, length + 1):
        for rest in schedules(length - first):
            yield (first, *rest)


class _CacheRecorder:
    """`subject`, which also remembers the cache of its last step."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.cache: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        logits, self.cache = self.subject.cached(tokens, cache)
        return logits, self.cache


def _row(subject: Any, pattern: Pattern, prefix: int) -> AuditRow:
    tokens, config = pattern[:prefix], subject.config
    one_token_each, *others = (position_differences(subject, tokens, s) for s in schedules(prefix))
    tensors = _cache_tensors(subject, tokens)
    expected = (1, config.kv_heads, prefix, config.head_dim)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    size = subject.model.flat.element_size()
    return AuditRow(
        pattern=pattern,
        prefix=prefix,
        cache_shape=next((shape for shape in shapes if shape != expected), expected),
        expected_shape=expected,
        max_abs_diff=largest(one_token_each.tolist()),
        last_abs_diff=float(one_token_each[-1]),
        any_schedule_abs_diff=largest(
            largest(differences.tolist()) for differences in (one_token_each, *others)
        ),
        cache_bytes=sum(storages.values()),
        expected_bytes=importlib.import_module(CACHE).expected_bytes(config, 1, prefix, size),
    )


def _cache_tensors(subject: Subject, tokens: Pattern) -> list[Tensor]:
    """Returns the K and V tensors of every layer after feeding `tokens` one by one; none if the
    cached path raises."""
    recorder = _CacheRecorder(subject)
    case = one_by_one(tokens)
    try:
        run_cached(recorder, case)
    except CachedPathRaised:
        return []
    cache = recorder.cache
    while isinstance(cache, FaultyCache):
        cache = cache.inner
    return [*cache.keys, *cache.values]


def _generation(subject: Subject, prompt: Pattern, sampling: Sampling | None) -> Generation:
    """Generates up to the last trained position, on both paths."""
    assert subject.max_length is not None
    count = subject.max_length - len(prompt)
    uncached = generate_uncached(subject, prompt, count, sampling)
    try:
        cached = generate_cached(subject, prompt, count, sampling)
    except Exception as error:
        return Generation(
            prompt, sampling, (), uncached, f"the cached path raised {one_line(error)}"
        )
    return Generation(prompt, sampling, cached, uncached)
