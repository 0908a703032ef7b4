"""Checks that a subject's own `generate` chooses the same tokens with its cache as without.

`generate` uses the cache in its own way: it builds masks and positions, and reorders beams. If the
tokens differ, the logits distinguish a fault from a tie that rounding decides. Without logits only
a difference in float64 counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import one_line
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.reference import tolerance_for
from kvfuzz.subjects.run import as_tensor, run_uncached

LENGTH = 6
"""How many tokens to generate."""
BEAMS = (1, 2)
"""Greedy search, and beam search with 2 beams."""

Answer = tuple[Tensor, Tensor | None]
"""Tokens [batch, length] and, if `generate` returns them, their logits [batch, length, vocab]."""


def check_generation(subject: Any, case: Case) -> Verdict:
    """Judges greedy and beam search that continue the tokens of the first call."""
    first = next(step for step in case.steps() if step.feeds)
    prompt = case.prefix(first.stop)
    room = LENGTH if subject.max_length is None else subject.max_length - first.stop
    length = min(LENGTH, room)
    if length < 1:
        return _discard("there is no room to generate a token")
    count = 0
    for beams in BEAMS:
        answers = [_generate(subject, prompt, length, beams, cached) for cached in (True, False)]
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        how = "greedy search" if beams == 1 else f"search with {beams} beams"
        if any(isinstance(error, NotImplementedError) for error in errors) or len(errors) == 2:
            return _discard(f"{how}: {one_line(errors[0])}")
        if errors:
            which = "with" if isinstance(answers[0], Exception) else "without"
            return _diverge(f"{how} raised {which} its cache: {one_line(errors[0])}")
        broken = _difference(subject, case, prompt, answers[0], answers[1], beams)  # type: ignore[arg-type]
        if broken is not None:
            return _diverge(f"{how}: {broken}")
        count += len(prompt) * length
    return Verdict("agreed", positions=count, law="generation")


def _generate(
    subject: Any, prompt: tuple[tuple[int, ...], ...], length: int, beams: int, cached: bool
) -> Answer | Exception:
    try:
        found: Answer = subject.generate(as_tensor(subject, prompt), length, beams, cached)
    except Exception as error:
        return error
    return found


def _difference(
    subject: Any,
    case: Case,
    prompt: tuple[tuple[int, ...], ...],
    cached: Answer,
    uncached: Answer,
    beams: int,
) -> str | None:
    """Describes how the answers differ; None if they do not, or only by a tie."""
    if torch.equal(cached[0], uncached[0]):
        return None
    row, place = (int(n) for n in (cached[0] != uncached[0]).nonzero()[0])
    with_it, without = int(cached[0][row, place]), int(uncached[0][row, place])
    text = (
        f"token {place + 1} of row {row} is {with_it} with the cache, {without} without, "
        f"after a prompt of {len(prompt[0])}"
    )
    one, other = cached[1], uncached[1]
    if beams > 1 or one is None or other is None:
        return text if case.dtype == "float64" else None
    # Up to here both searches read the same tokens of this row: the logits should agree.
    tokens = (*prompt[row], *uncached[0][row, :place].tolist())
    alone = Case((tokens,), (len(tokens),), case.seed, case.dtype, case.config)
    whole = run_uncached(subject, alone.tokens)
    tolerance = tolerance_for(subject, alone, whole).between(len(tokens) - 1, len(tokens))
    here = (slice(row, row + 1), slice(place, place + 1))
    found = compare(one[here], other[here], tolerance)
    if not bool(found.diverges.any()):
        return None
    return f"{text}; logits differ by {float(found.excess.max()):.2g} x the allowed difference"


def _diverge(what: str) -> Verdict:
    return Verdict("diverged", excess=torch.inf, law="generation", finding=f"generation: {what}")


def _discard(reason: str) -> Verdict:
    return Verdict("discarded", law="generation", reason=reason)
