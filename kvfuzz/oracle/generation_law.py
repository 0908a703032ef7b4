"""Checks that a subject's own `generate` chooses the same tokens with its cache as without.

`generate` uses the cache in its own way: it builds masks and positions, and reorders beams. Greedy
search is compared by its logits too, if it returns them. Beam search runs on flat logits, so that
beams change places (`kvfuzz.oracle.beam_search`). A difference that a tie explains is none.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import one_line
from kvfuzz.oracle.beam_search import (
    Fault,
    Search,
    change_tokens,
    flattened,
    search,
    spread,
)
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.reference import find_reference, measure_islands, measure_noise
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.run import Rows, as_tensor

LENGTH = 6
"""How many tokens to generate."""
BEAMS = 2
ROWS = 4
"""How many rows are searched, where only tokens are compared."""
FLATTENINGS = (1.0, 0.4, 4.0)
"""Beam search runs on logits of about unit standard deviation. If no beam changes its place there,
they are divided by these in turn."""

Answer = tuple[Tensor, Tensor | None]
"""Tokens [batch, length] and, if `generate` returns them, their logits [batch, length, vocab]."""


class _Refused(Exception):
    """A search says nothing: it is refused, or raises with the cache and without."""


class _Differs(Exception):
    """The searches differ; the message says how."""


def check_generation(subject: Any, case: Case) -> Verdict:
    """Judges greedy and beam search that continue the tokens of the first call.

    A search that `generate` refuses does not count. The verdict is `vacuous` if a search could not
    have shown a wrong cache.
    """
    first = next(step for step in case.steps() if step.feeds)
    prompt = case.prefix(first.stop)
    room = LENGTH if subject.max_length is None else subject.max_length - first.stop
    length = min(LENGTH, room)
    if length < 1:
        return _discard("there is no room to generate a token")
    count, refusals, idle = 0, [], None
    for beams in (1, BEAMS):
        rows = prompt[: _most_rows(subject, beams)]
        try:
            found = _check_search(subject, case, rows, length, beams)
        except _Refused as refused:
            refusals.append(str(refused))
        except _Differs as differs:
            finding = f"generation: {differs}"
            return Verdict("diverged", excess=math.inf, law="generation", finding=finding)
        else:
            idle = idle or found
            count += len(rows) * length
    if not count:
        return Verdict("discarded", law="generation", reason=refusals[0])
    if idle is not None:
        return Verdict("vacuous", law="generation", reason=idle)
    return Verdict("agreed", positions=count, law="generation")


def _check_search(subject: Any, case: Case, prompt: Rows, length: int, beams: int) -> str | None:
    """Compares the searches with and without the cache. Returns why they could not have differed,
    None if they could. Raises _Differs and _Refused."""
    how = "greedy search" if beams == 1 else f"search with {beams} beams"
    if beams >= subject.vocab_size:
        raise _Refused(f"{how}: the vocabulary is too small")
    if not prompt:
        raise _Refused(f"{how}: a call takes fewer rows")
    if beams == 1:
        cached, uncached = _answers(subject, prompt, length, beams, how)
        if cached[1] is not None and uncached[1] is not None:
            _compare_logits(subject, case, prompt, cached, uncached)
            return None
    fault: Fault = "lost its cache" if beams == 1 else "never reordered its cache"
    more = _more_rows(prompt, subject.vocab_size)[: _most_rows(subject, beams)]
    peaked = max(1.0, spread(subject, more))
    for flattening in FLATTENINGS:
        with flattened(subject, 1 / (peaked * flattening), more):
            cached, uncached = _answers(subject, more, length, beams, how)
            found = search(subject, more, length, beams)
            if not torch.equal(cached[0], uncached[0]):
                if _is_decided(subject, case, more, uncached[0], found):
                    raise _Differs(f"{how}: {_first_token(more, cached[0], uncached[0])}")
                return None
            if beams > 1 and not found.crossed:
                continue
            wrong = search(subject, more, length, beams, fault)
            if not torch.equal(wrong.tokens, found.tokens):
                return None
    return f"{how} would choose the same tokens if it {fault}"


def _most_rows(subject: Any, beams: int) -> int | None:
    """Returns how many rows a search with so many `beams` may continue; None for any number."""
    most = call_limits_of(subject).rows
    return None if most is None else most // beams


def _more_rows(prompt: Rows, vocab_size: int) -> Rows:
    """Returns `prompt` with further rows of other tokens, up to ROWS: in more rows a wrong cache is
    more likely to show."""
    more = (change_tokens(prompt[0], vocab_size, by) for by in range(1, ROWS + 1))
    rows = [tuple(row) for row in prompt]
    return [*rows, *(row for row in more if row not in rows)][: max(ROWS, len(rows))]


def _answers(
    subject: Any, prompt: Rows, length: int, beams: int, how: str
) -> tuple[Answer, Answer]:
    """Generates with the cache and without. Raises _Refused if neither works, _Differs if one."""
    found: list[Any] = []
    for cached in (True, False):
        try:
            found.append(subject.generate(as_tensor(subject, prompt), length, beams, cached))
        except Exception as error:
            if isinstance(error, NotImplementedError):
                raise _Refused(f"{how}: {one_line(error)}") from error
            found.append(error)
    errors = [one for one in found if isinstance(one, Exception)]
    if len(errors) == 2:
        raise _Refused(f"{how}: {one_line(errors[0])}")
    if errors:
        which = "with" if errors[0] is found[0] else "without"
        raise _Differs(f"{how} raised {which} its cache: {one_line(errors[0])}")
    return found[0], found[1]


def _compare_logits(
    subject: Any, case: Case, prompt: Rows, cached: Answer, uncached: Answer
) -> None:
    """Compares the logits of greedy searches, of each row up to its first other token: so far both
    have read the same text. Raises _Differs."""
    one, other = cached[1], uncached[1]
    assert one is not None
    assert other is not None
    chosen = uncached[0].cpu()
    same = (cached[0] == uncached[0]).cpu().long().cumprod(1)
    # The logits of a place count if the tokens before it are the same.
    places = torch.cat((torch.ones_like(same[:, :1]), same[:, :-1]), 1).bool()
    start, length = len(prompt[0]) - 1, chosen.shape[1]
    texts = tuple((*row, *new) for row, new in zip(prompt, chosen[:, :-1].tolist(), strict=True))
    fed = replace(case, tokens=texts, schedule=(len(texts[0]),), given=())
    expected = find_reference(subject, fed, noise=False)
    if expected.error is not None:
        raise _Refused(f"greedy search: {one_line(expected.error)}")
    places = places.to(one.device)
    found = compare(one, other, expected.known[1].between(start, start + length), places)
    for measure in (measure_noise, measure_islands):
        if not bool(found.diverges.any()):
            return
        expected = measure(expected, subject, fed)
        found = compare(one, other, expected.known[1].between(start, start + length), places)
    if bool(found.diverges.any()):
        much = f"logits differ by {float(found.excess.max()):.2g} x the allowed difference"
        if not bool(same.all()):
            raise _Differs(f"greedy search: {_first_token(prompt, cached[0], chosen)}; {much}")
        row, place = (int(number) for number in found.diverges.nonzero()[0])
        where = f"token {place + 1} of row {row} is the same, after a prompt of {len(prompt[0])}"
        raise _Differs(f"greedy search: {where}; its {much}")


def _is_decided(subject: Any, case: Case, prompt: Rows, tokens: Tensor, found: Search) -> bool:
    """Whether no rounding could have made a search choose other tokens than `tokens`, those
    without a cache.

    Each of its log probabilities may be off by twice what a logit may. A search of another kind
    than `found` counts in float64 only, where a tie is unlikely.
    """
    if not torch.equal(found.tokens, tokens.cpu()):
        return case.dtype == "float64"
    texts = tuple((*row, *new) for row, new in zip(prompt, tokens.tolist(), strict=True))
    fed = replace(case, tokens=texts, schedule=(len(texts[0]),), given=())
    expected = find_reference(subject, fed)
    if expected.error is not None:
        return False
    allowed = float(measure_islands(expected, subject, fed).known[1].allowed.max())
    return found.gap > 4 * tokens.shape[1] * allowed


def _first_token(prompt: Rows, cached: Tensor, uncached: Tensor) -> str:
    """Describes the first token that differs."""
    cached, uncached = cached.cpu(), uncached.cpu()
    row, place = (int(number) for number in (cached != uncached).nonzero()[0])
    with_it, without = int(cached[row, place]), int(uncached[row, place])
    return (
        f"token {place + 1} of row {row} is {with_it} with the cache, {without} without, "
        f"after a prompt of {len(prompt[0])}"
    )


def _discard(reason: str) -> Verdict:
    return Verdict("discarded", law="generation", reason=reason)
