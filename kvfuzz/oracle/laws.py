"""Checks the companion laws: what must hold of a decoder besides the agreement of its paths.

A fault in code that both paths run moves both, and comparing the two cannot show it. Each companion
law compares a path with itself, on input that must not matter to it. A law that does not apply to a
case discards it.

A new law is a generator of pairs of runs with `@_law` above it, such as `causality`
(`docs/adding-a-law.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import Layout, layout
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, one_line
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.frame_law import check_frame
from kvfuzz.oracle.generation_law import check_generation
from kvfuzz.oracle.reference import (
    NOTHING_RUN,
    KnownRuns,
    Reference,
    find_reference,
    measure_islands,
    measure_noise,
)
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import (
    CachedPathRaised,
    Refused,
    compared,
    run_cached,
    run_uncached,
    seeded,
)
from kvfuzz.subjects.sides import SIDE_INPUTS

Pair = tuple[str, Tensor, Tensor, Tolerance, Tensor]
"""Two runs of one path to compare: a description, the logits of both [batch, time, vocab], the
tolerance, and the mask [batch, time] of the positions to compare."""


@dataclass(frozen=True)
class Runs:
    """The two runs of a case that laws compare others with: the `uncached` logits [sequences, time,
    vocab] of its sequences, their `tolerance`, and the `cached` logits [rows, columns, vocab].
    A law that runs several changed copies of the case runs them in one batch unless `apart`."""

    subject: Subject
    case: Case
    uncached: Tensor
    expected: Reference
    known: Tensor | None = None
    apart: bool = False

    @property
    def tolerance(self) -> Tolerance:
        return self.expected.known[1]

    @cached_property
    def cached(self) -> Tensor:
        """Runs the cached path, unless its logits are known."""
        return run_cached(self.subject, self.case) if self.known is None else self.known


Pairs = Callable[[Subject, Case, Runs], Iterator[Pair]]

DEFINITIONS: dict[str, str] = {}
"""What each law but agreement demands, for `docs/programs.md`."""
_COMPARED: dict[str, Pairs] = {}
"""The laws that compare pairs of runs, and the generator of each law's pairs."""


def _law(definition: str) -> Callable[[Pairs], Pairs]:
    """Adds the decorated generator as a law, under its own name."""

    def add(pairs: Pairs) -> Pairs:
        _COMPARED[pairs.__name__] = pairs
        DEFINITIONS[pairs.__name__] = definition
        return pairs

    return add


@_law(
    "the logits of a row do not depend on later tokens, in the uncached path and within a chunk of "
    "the cached path"
)
def causality(subject: Subject, case: Case, runs: Runs) -> Iterator[Pair]:
    """Changes later tokens: of the uncached path from the middle on, and the last one; of the
    cached path the last one of the first chunk."""
    found = layout(case)
    logits, tolerance = runs.uncached, runs.tolerance
    length, count = logits.shape[1], len(found.sequences)
    starts = sorted({length // 2, length - 1} - {0})
    changed = [
        (*row[:start], *_change(row[start:], subject))
        for start in starts
        for row in found.sequences
    ]
    if runs.apart:
        reruns = [run_uncached(subject, rows) for rows in _chunks(changed, count)]
    else:
        reruns = list(torch.split(run_uncached(subject, changed), count)) if changed else []
    for start, again in zip(starts, reruns, strict=True):
        places = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        places[:, :start] = True
        what = f"the uncached path, with other tokens from position {start} on"
        yield what, logits, again, tolerance, places
    chunk = next((step for step in case.steps() if step.feeds and step.size > 1), None)
    if chunk is None:
        return
    last = chunk.stop - 1
    tokens = [
        (*row[:last], *_change(row[last : last + 1], subject)) for row in case.prefix(last + 1)
    ]
    first = replace(case, schedule=case.schedule[: chunk.index + 1], tokens=case.prefix(last + 1))
    fed = _compared(subject, first)
    fed[:, : chunk.start], fed[:, last] = False, False
    if not bool(fed.any()):
        return
    one = runs.cached[:, : last + 1]
    other = run_cached(subject, replace(first, tokens=tuple(tokens)))
    bound = tolerance.at(found.table).between(0, last + 1)
    what = f"the cached path, with another last token in step {chunk.index + 1}"
    yield what, one, other, bound, fed.to(one.device)


@_law(
    "the logits of a row do not depend on other rows or on padding, and are the same when the row "
    "runs alone"
)
def isolation(subject: Subject, case: Case, runs: Runs) -> Iterator[Pair]:
    """Changes all tokens outside some of the sequences, padding too, and then all outside the
    others, so that every row keeps its tokens once; and runs the last row alone."""
    found = layout(case)
    sequences = found.sequences
    logits, tolerance = runs.uncached, runs.tolerance
    for kept in _company(case) if len(sequences) > 1 else ():
        changed = [
            row if number in kept else _change(row, subject) for number, row in enumerate(sequences)
        ]
        places = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
        places[sorted(kept)] = True
        again = run_uncached(subject, changed)
        yield (
            "the uncached path, with other tokens in the other rows",
            logits,
            again,
            tolerance,
            places,
        )
    if len(sequences) > 1:
        alone = run_uncached(subject, sequences[-1:])
        one, last = tolerance.at(lambda values: values[-1:]), logits[-1:]
        yield "the uncached path, with the last row alone", last, alone, one, _everywhere(last)
    yield from _cached_isolation(subject, case, runs)


def _cached_isolation(subject: Subject, case: Case, runs: Runs) -> Iterator[Pair]:
    """Does the same to the cached path."""
    found = layout(case)
    bound = runs.tolerance.at(found.table)
    for kept in _company(case):
        mine = _texts_of(kept, found) & found.fed
        if bool(mine.all()) or not bool(mine.any()):
            continue
        tokens = tuple(
            tuple(
                token if own else (token + 1) % subject.vocab_size
                for token, own in zip(row, owned, strict=True)
            )
            for row, owned in zip(case.tokens, mine.tolist(), strict=True)
        )
        before = runs.cached
        after = run_cached(subject, replace(case, tokens=tokens))
        what = "the cached path, with other tokens in the other rows and in padding"
        places = mine & _compared(subject, case)
        yield what, before, after, bound, places.to(before.device)
    if case.is_plain and case.batch > 1:
        alone = run_cached(subject, replace(case, tokens=case.tokens[-1:]))
        one, last = bound.at(lambda values: values[-1:]), runs.cached[-1:]
        yield "the cached path, with the last row alone", last, alone, one, _everywhere(last)


def _compared(subject: Subject, case: Case) -> Tensor:
    """Returns which cells of the token table of `case` a law of the cached path may compare."""
    cells = compared(subject, case)
    return layout(case).fed.clone() if cells is None else cells.clone()


def _everywhere(logits: Tensor) -> Tensor:
    return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)


def _company(case: Case) -> tuple[frozenset[int], ...]:
    """Divides the sequences of `case` into two parts, to be kept in turn: the first half and the
    last, or the even and the odd ones. Over the cases of a hunt every two rows are apart."""
    numbers = range(len(layout(case).sequences))
    half = (len(numbers) + 1) // 2
    halves = sum(map(sum, case.tokens)) % 2 == 0
    one = frozenset(numbers[:half] if halves else numbers[::2])
    parts = one, frozenset(numbers) - one
    return tuple(part for part in parts if part)


def _texts_of(kept: Collection[int], found: Layout) -> Tensor:
    """Returns which cells of the token table belong to the text of a sequence in `kept`, whichever
    sequence they are listed under: bool [rows, columns]."""
    texts = {
        (number, position)
        for number, one in enumerate(found.sequences)
        for mine in kept
        for position in range(len(one))
        if one[: position + 1] == found.sequences[mine][: position + 1]
    }
    cells = zip(found.sequence.tolist(), found.position.tolist(), strict=True)
    return torch.tensor([[cell in texts for cell in zip(*row, strict=True)] for row in cells])


@_law("the same case gives the same bits again, also after another case on the same model")
def repeatability(subject: Subject, case: Case, runs: Runs) -> Iterator[Pair]:
    """Runs the same again, and again after another case of one row with other tokens."""
    found = layout(case)
    logits, tolerance = runs.uncached, runs.tolerance
    everywhere = _everywhere(logits)
    exactly = replace(tolerance, allowed=torch.zeros_like(tolerance.allowed))
    other = replace(
        case,
        tokens=(_change(case.tokens[0], subject),),
        schedule=(case.length,) if case.length == 1 else (case.length - 1, 1),
        given=(),
    )
    other = call_limits_of(subject).fitted(other) or other
    one = runs.cached
    table = exactly.at(found.table)
    fed = _compared(subject, case).to(one.device)
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
    """The law is broken; the message is the finding."""


def _again(run: Callable[[], Tensor], what: str) -> Tensor:
    """Runs `run` a second time. Raises _Broken if it raises, since it did not the first time."""
    try:
        return run()
    except Exception as error:
        cause = error.error if isinstance(error, CachedPathRaised) else error
        raise _Broken(f"{what}, raised {one_line(cause)}") from error


_JUDGED: dict[str, Callable[[Subject, Case], Verdict]] = {
    "frame": check_frame,
    "generation": check_generation,
}
"""The laws that need no reference, and the function that judges each."""
COMPANIONS = (*_COMPARED, *_JUDGED)
"""The laws that a hunt checks by default."""
NEEDED = {"frame": "view", "generation": "generate"}
"""The optional method that a law needs."""
DEFINITIONS["frame"] = (
    "a call changes no old entry and appends exactly what it was fed; crop, reorder, join, restore "
    "and reset change the entries as they should; other caches stay unchanged. Needs `view`; with "
    "`windows`, a layer may forget what has left the window"
)
DEFINITIONS["generation"] = (
    "`generate`, greedy and with two beams, chooses the same tokens with the cache as without, and "
    "by the same logits if it returns them; a tie is no bug. Needs `generate`"
)
DEFINITIONS["latent"] = (
    "no inner state differs, even where the logits agree. Only on request: `--law latent` "
    "([locating](locating.md))"
)
LAWS = ("agreement", *COMPANIONS, "latent")


def check_companion(
    law: str,
    subject: Subject,
    case: Case,
    name: str = "subject",
    leeway: float = 1.0,
    known: KnownRuns = NOTHING_RUN,
) -> Verdict:
    """Judges `case` by `law`, one of COMPANIONS, on a `subject` that its factory has checked.

    A path that raises on changed input proves nothing: the case is discarded. `leeway` multiplies
    the allowed difference outside float64. The runs that are `known` are not run again.
    """
    with seeded(case.seed), torch.no_grad():
        try:
            if law in NEEDED and not callable(getattr(subject, NEEDED[law], None)):
                return Verdict("discarded", law=law, reason=f"there is no {NEEDED[law]}()")
            if law == "generation" and getattr(subject, SIDE_INPUTS, None) is not None:
                return Verdict("discarded", law=law, reason="generate() gets no side inputs")
            if law in _JUDGED:
                return _JUDGED[law](subject, case)
            expected = known.expected or find_reference(subject, case, name, leeway)
            if expected.error is not None:
                return Verdict("discarded", law=law, reason="the uncached path raised")
            return _check_pairs(law, _runs(subject, case, expected, known.cached))
        except KvfuzzError:
            raise
        except Refused as refused:
            return Verdict("discarded", law=law, reason=str(refused))
        except Exception as error:
            cause = error.error if isinstance(error, CachedPathRaised) else error
            return Verdict("discarded", law=law, reason=f"a path raised {one_line(cause)}")


def _runs(subject: Subject, case: Case, expected: Reference, cached: Tensor | None) -> Runs:
    logits, _ = expected.known
    if expected.prefixwise:  # the laws compare single runs over the whole rows
        logits = run_uncached(subject, layout(case).sequences)
    return Runs(subject, case, logits, expected, cached)


def _check_pairs(law: str, runs: Runs) -> Verdict:
    count, excess = 0, 0.0
    effects: list[bool] = []
    try:
        for what, one, other, tolerance, places in _COMPARED[law](runs.subject, runs.case, runs):
            effects += _effects(one, other, places)
            found = compare(other, one, tolerance, places)
            if bool(found.diverges.any()):
                raise _Broken(f"{what}: {_first_difference(found.excess, one, other, found.worst)}")
            count += int(places.sum())
            excess = max(excess, float(found.excess.max()))
    except _Broken as broken:
        if law != "repeatability":
            # The runs may differ by no more than rounding, also that of a coarser dtype inside.
            for measure in (measure_noise, measure_islands):
                measured = measure(runs.expected, runs.subject, runs.case)
                if measured is not runs.expected:
                    return _check_pairs(law, replace(runs, expected=measured))
            # A path that does not repeat itself breaks every law: blame repeatability.
            unstable = _check_pairs("repeatability", runs)
            if unstable.diverged:
                return unstable
        if law == "causality" and not runs.apart:  # rows that depend on each other break it too
            shared = _check_pairs("isolation", runs)
            return shared if shared.diverged else _check_pairs(law, replace(runs, apart=True))
        return Verdict("diverged", excess=torch.inf, law=law, finding=f"{law}: {broken}")
    if not count:
        return Verdict("discarded", law=law, reason=f"{law} says nothing about this case")
    if effects and not any(effects) and law != "repeatability":  # which changes nothing
        reason = f"what {law} changes has no effect on any logit"
        return Verdict("vacuous", law=law, reason=reason)
    return Verdict("agreed", positions=count, excess=excess, law=law)


def _effects(one: Tensor, other: Tensor, places: Tensor) -> list[bool]:
    """Returns whether the input that a law changed had an effect: on the logits outside the
    `places` that must stay the same. Empty if there are none outside."""
    outside = ~places
    if not bool(outside.any()):
        return []
    return [not torch.equal(one[outside], other[outside])]


def _first_difference(excess: Tensor, one: Tensor, other: Tensor, worst: Tensor) -> str:
    """Describes the first position that differs."""
    column = int((excess > 1).any(0).nonzero()[0])
    row = int(excess[:, column].argmax())
    token = int(worst[row, column])
    a, b = float(one[row, column, token]), float(other[row, column, token])
    return f"logit[{token}] of row {row}, position {column} is {b:.6g}, and was {a:.6g}"


def _chunks(rows: list[tuple[int, ...]], count: int) -> list[list[tuple[int, ...]]]:
    """Splits `rows` into lists of `count`."""
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def _change(row: tuple[int, ...], subject: Subject) -> tuple[int, ...]:
    """Returns other tokens, one for each of `row`."""
    return tuple((token + 1) % subject.vocab_size for token in row)
