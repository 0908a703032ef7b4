"""The companion laws: what must hold of a decoder and its cache beside the agreement of its paths.

A fault in code that both paths run moves both of them, and no comparison of the two can see it.
Each law here compares a path with itself, on input that must not matter to it:

- *causality*: a row's logits do not depend on later tokens;
- *isolation*: nor on the other rows, nor on whether there are any;
- *frame*: a call changes nothing that a cache held before and adds what it was fed, other
  operations do to its entries what they say, and one cache leaves another alone (for a subject that
  shows its entries by `view`);
- *repeatability*: the same case gives the same bits again, also after another case;
- *generation*: the subject's own `generate`, if it has one, chooses the same tokens with its cache
  as without (`kvfuzz.oracle.generation_law`).

One more is held to on request alone, since what breaks it may be harmless:

- *latent*: where the logits agree, the states inside the two paths agree as well. Faults that
  offset each other break it (`kvfuzz.localize.locate`).

*Agreement* is `kvfuzz.oracle.agreement.check`, and *vacuity* is judged there, with what an
agreement is worth. A law that does not apply to a case leaves it discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, one_line
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.frame_law import frame
from kvfuzz.oracle.generation_law import generation
from kvfuzz.oracle.reference import Reference, reference
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached, seeded

Pair = tuple[str, Tensor, Tensor, Tolerance, Tensor]
"""Where two runs of one path are compared: in words, both logits [batch, time, vocab], what is
allowed, and at which places [batch, time]."""


def causality(subject: Subject, case: Case, expected: Reference) -> Iterator[Pair]:
    """Later tokens are changed: those of the uncached rows from the middle on and the last one, and
    the last one of the first chunk of the cached path."""
    found = layout(case)
    logits, tolerance = _known(expected)
    length = logits.shape[1]
    for start in sorted({length // 2, length - 1} - {0}):
        changed = [(*row[:start], *_others(row[start:], subject)) for row in found.sequences]
        again = run_uncached(subject, changed)
        places = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        places[:, :start] = True
        what = f"the uncached path, with other tokens from position {start} on"
        yield what, logits, again, tolerance, places
    chunk = next((step for step in case.steps() if step.feeds and step.size > 1), None)
    if chunk is None:
        return
    last = chunk.stop - 1
    tokens = [
        (*row[:last], *_others(row[last : last + 1], subject)) for row in case.prefix(last + 1)
    ]
    first = replace(case, schedule=case.schedule[: chunk.index + 1], tokens=case.prefix(last + 1))
    fed = layout(first).fed.clone()
    fed[:, : chunk.start], fed[:, last] = False, False
    if not bool(fed.any()):
        return
    one = run_cached(subject, first)
    other = run_cached(subject, replace(first, tokens=tuple(tokens)))
    bound = tolerance.at(found.table).between(0, last + 1)
    what = f"the cached path, with another last token in step {chunk.index + 1}"
    yield what, one, other, bound, fed.to(one.device)


def isolation(subject: Subject, case: Case, expected: Reference) -> Iterator[Pair]:
    """All tokens are changed that are not of the first sequence, padding included; and the first
    row runs alone."""
    found = layout(case)
    logits, tolerance = _known(expected)
    mine = (found.sequence == 0) & found.fed
    if len(found.sequences) > 1:
        others = [found.sequences[0], *(_others(row, subject) for row in found.sequences[1:])]
        first = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        first[0] = True
        again = run_uncached(subject, others)
        what = "the uncached path, with other tokens in the other rows"
        yield what, logits, again, tolerance, first
        alone = run_uncached(subject, found.sequences[:1])
        one = tolerance.at(lambda values: values[:1])
        yield "the uncached path, with the first row alone", logits[:1], alone, one, first[:1]
    if bool(mine.all()):
        return
    tokens = tuple(
        tuple(
            token if own else (token + 1) % subject.vocab_size
            for token, own in zip(row, owned, strict=True)
        )
        for row, owned in zip(case.tokens, mine.tolist(), strict=True)
    )
    before = run_cached(subject, case)
    after = run_cached(subject, replace(case, tokens=tokens))
    bound = tolerance.at(found.table)
    mine = mine.to(before.device)
    what = "the cached path, with other tokens in the other rows and in padding"
    yield what, before, after, bound, mine
    if case.is_plain:
        alone = run_cached(subject, replace(case, tokens=case.tokens[:1]))
        first_row = bound.at(lambda values: values[:1])
        yield "the cached path, with the first row alone", before[:1], alone, first_row, mine[:1]


def repeatability(subject: Subject, case: Case, expected: Reference) -> Iterator[Pair]:
    """The same again, and the same again after a case of other tokens, of one row."""
    found = layout(case)
    logits, tolerance = _known(expected)
    everywhere = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    exactly = replace(tolerance, allowed=torch.zeros_like(tolerance.allowed))
    other = replace(
        case,
        tokens=(_others(case.tokens[0], subject),),
        schedule=(case.length,) if case.length == 1 else (case.length - 1, 1),
        given=(),
    )
    one = run_cached(subject, case)
    table = exactly.at(found.table)
    fed = found.fed.to(one.device)
    what = "the cached path, run again"
    yield what, one, _again(lambda: run_cached(subject, case), what), table, fed
    with suppress(CachedPathRaised, Refused):
        run_uncached(subject, other.tokens)
        run_cached(subject, other)
    what = "the cached path, run again after another case"
    yield what, one, _again(lambda: run_cached(subject, case), what), table, fed
    what = "the uncached path, run again after another case"
    uncached = _again(lambda: run_uncached(subject, found.sequences), what)
    yield what, logits, uncached, exactly, everywhere


class _Broken(Exception):
    """A law is broken by an error, which this tells."""


def _again(run: Callable[[], Tensor], what: str) -> Tensor:
    """What `run` gives, which has run before. Raises _Broken if it raises this time."""
    try:
        return run()
    except Exception as error:
        cause = error.error if isinstance(error, CachedPathRaised) else error
        raise _Broken(f"{what}, raised {one_line(cause)}") from error


_COMPARED: dict[str, Callable[[Subject, Case, Reference], Iterator[Pair]]] = {
    "causality": causality,
    "isolation": isolation,
    "repeatability": repeatability,
}
COMPANIONS = (*_COMPARED, "frame", "generation")
"""The laws that a hunt holds cases to unless it is told otherwise."""
NEEDED = {"frame": "view", "generation": "generate"}
"""The laws that need an offer of a subject."""
LAWS = ("agreement", *COMPANIONS, "latent")


def check_companion(
    law: str,
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    expected: Reference | None = None,
) -> Verdict:
    """The verdict on `case` by `law`, one of COMPANIONS, of a `subject` that its factory has
    checked.

    A path that raises on the input that a law changes says nothing, and the case is discarded.
    `leeway` multiplies what is allowed outside float64. `expected` is what the uncached path gives,
    if that was found before.
    """
    with seeded(case.seed), torch.no_grad():
        try:
            if law in NEEDED and not callable(getattr(subject, NEEDED[law], None)):
                return Verdict("discarded", law=law, reason=f"there is no {NEEDED[law]}()")
            if law == "generation":
                return generation(subject, case)
            if law == "frame":
                return _frame(subject, case)
            found = expected or reference(subject, case, name, leeway)
            return _compared(law, subject, case, found)
        except KvfuzzError:
            raise
        except Refused as refused:
            return Verdict("discarded", law=law, reason=str(refused))
        except Exception as error:
            cause = error.error if isinstance(error, CachedPathRaised) else error
            return Verdict("discarded", law=law, reason=f"a path raised {one_line(cause)}")


def _frame(subject: Any, case: Case) -> Verdict:
    broken, entries = frame(subject, case)
    if broken is not None:
        return Verdict("diverged", excess=torch.inf, law="frame", finding=f"frame: {broken}")
    status = "agreed" if entries else "discarded"
    reason = None if entries else "no entry of a cache was there to be compared"
    return Verdict(status, positions=entries, law="frame", reason=reason)  # type: ignore[arg-type]


def _compared(law: str, subject: Subject, case: Case, expected: Reference) -> Verdict:
    if expected.logits is None:
        return Verdict("discarded", law=law, reason="the uncached path raised")
    if expected.prefixwise:  # one run is compared with one run
        expected = replace(expected, logits=run_uncached(subject, layout(case).sequences))
    count, excess = 0, 0.0
    try:
        for what, one, other, tolerance, places in _COMPARED[law](subject, case, expected):
            found = compare(other, one, tolerance, places)
            if bool(found.diverges.any()):
                raise _Broken(f"{what}: {_difference(found.excess, one, other, found.worst)}")
            count += int(places.sum())
            excess = max(excess, float(found.excess.max()))
    except _Broken as broken:
        if law != "repeatability":
            # A path that does not repeat itself breaks any law, and that one first.
            forgetful = _compared("repeatability", subject, case, expected)
            if forgetful.diverged:
                return forgetful
        return Verdict("diverged", excess=torch.inf, law=law, finding=f"{law}: {broken}")
    if not count:
        return Verdict("discarded", law=law, reason=f"{law} says nothing about this case")
    return Verdict("agreed", positions=count, excess=excess, law=law)


def _difference(excess: Tensor, one: Tensor, other: Tensor, worst: Tensor) -> str:
    """The first place that differs, in words."""
    column = int((excess > 1).any(0).nonzero()[0])
    row = int(excess[:, column].argmax())
    token = int(worst[row, column])
    a, b = float(one[row, column, token]), float(other[row, column, token])
    return f"logit[{token}] of row {row}, position {column} is {b:.6g}, and was {a:.6g}"


def _known(expected: Reference) -> tuple[Tensor, Tolerance]:
    assert expected.logits is not None
    assert expected.tolerance is not None
    return expected.logits, expected.tolerance


def _others(row: tuple[int, ...], subject: Subject) -> tuple[int, ...]:
    return tuple((token + 1) % subject.vocab_size for token in row)
