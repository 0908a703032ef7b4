"""The runs that the steps of a case are compared with: over whole rows, by another path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.layout import places_of, text
from kvfuzz.localize.operations.align import Frame, frame_of
from kvfuzz.localize.operations.difference import close
from kvfuzz.localize.operations.record import WatchedSubject
from kvfuzz.localize.operations.reference import Reference, measured
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.tolerance import constant
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached

_Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Beside:
    """A reference for a step, and how the sizes of both correspond."""

    reference: Reference
    frame: Frame


class References:
    """What each of the `steps` that feed is compared with, run when it is asked for.

    By the contract that is a run over the prefix that a step ends, its own reference. Of the run
    for a later step whose rows go on from there, the first part is nearly always the same: what
    agrees with that is right, and does not need the other.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case,
        steps: Sequence[Step],
        watched: WatchedSubject,
        whole: bool,
    ) -> None:
        self._subject, self._case, self._watched, self._whole = subject, case, watched, whole
        self._steps = {step.index: step for step in steps if step.feeds}
        self._texts = {n: tuple(text(row) for row in step.after) for n, step in self._steps.items()}
        self._known: dict[tuple[_Rows, bool], Reference] = {}
        self._plain: dict[_Rows, Tensor] = {}
        self._stands: _Rows | None = None
        self._covering: dict[int, int] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._last = max(self._steps, default=0)
        self.frames = {
            n: self._frame(n, _length(self._texts[n], step)) for n, step in self._steps.items()
        }
        self._keys = {n: self._key(n) for n in self._steps}

    def end(self, step: int | None) -> None:
        """Nothing after `step` is asked for, if one is named."""
        if step is not None and step != self._last:
            self._last = step
            self._covering.clear()

    def kept(self) -> bool:
        """Whether the largest reference was not too large to keep all operations of: nor is any
        other then."""
        frames = {n: frame for n, frame in self.frames.items() if n <= self._last}
        if not frames:
            return True
        size = {n: frame.length * frame.rows for n, frame in frames.items()}
        return self.own(max(size, key=lambda n: (size[n], n))).reference.recording.whole

    def know(self, rows: Sequence[Sequence[int]], logits: Tensor, prefixes: bool) -> None:
        """The `logits` of an uncached run over `rows` are known, which is not run again; with
        `prefixes` what they say of a prefix is what a run over that alone says."""
        whole = tuple(map(tuple, rows))
        self._plain[whole] = logits
        self._stands = whole if prefixes else None

    def take(self, step: int, reference: Reference) -> None:
        """Take `reference` for the own one of `step`, and its logits for the right ones."""
        self._known[self._keys[step]] = reference
        self._plain[self._rows(step)] = reference.logits

    def own(self, step: int) -> Beside:
        """The run over the prefix that `step` ends: in one call with a fresh cache where that
        agrees (it has the cache's own code), else uncached."""
        key = self._keys[step]
        if key not in self._known:
            self._known[key] = self._run(*key)
        return Beside(self._known[key], self.frames[step])

    def _key(self, step: int) -> tuple[_Rows, bool]:
        """The rows of the own reference of `step`, and whether it is to be one call with a cache:
        not for a step that is one itself."""
        one_call = bool(self._steps[step].before[0]) or not self.frames[step].plain
        return _filled(self._texts[step], self.frames[step].length), one_call

    def of(self, step: int) -> Iterator[Beside]:
        """The references of `step`, the cheapest first and its own last; none if it feeds
        nothing."""
        if step not in self._steps:
            return
        later = self.covering(step)
        if later != step and self._keys[step] not in self._known:
            yield self.beside(step, later)
        yield self.own(step)

    def beside(self, step: int, later: int) -> Beside:
        """`step` beside the reference of a `later` one."""
        reference = self.own(later).reference
        return Beside(reference, self._frame(step, reference.length))

    def covering(self, step: int) -> int:
        """The last step whose rows go on from those of `step`; itself, if there is none."""
        if step not in self._covering:
            self._covering[step] = self._covering_of(step)
        return self._covering[step]

    def _covering_of(self, step: int) -> int:
        mine, frame = self._texts[step], self.frames[step]
        for later in reversed(self._texts):
            theirs = self._texts[later]
            if not step < later <= self._last or len(theirs) != len(mine):
                continue
            if _begin(theirs, mine) and self.frames[later].length not in (frame.slots, frame.fed):
                return later
        return step

    def answered(self, step: int, logits: Tensor) -> bool:
        """Whether the `logits` [rows, fed, vocab] of `step` are those of an uncached run over the
        prefix that it ends, with less than any noise between them."""
        whole, mine = self._stands, self._texts[step]
        covered = whole is not None and len(whole) == len(mine) and _begin(whole, mine)
        if whole is not None and covered and self._gives(step, logits, self._plain[whole]):
            return True
        return self._gives(step, logits, self._uncached(self._rows(step)))

    def _gives(self, step: int, logits: Tensor, right: Tensor) -> bool:
        """Whether `logits` of `step` are the `right` ones of its rows."""
        for group in self.frames[step].groups:
            rows = slice(None) if group.row is None else slice(group.row, group.row + 1)
            new, positions = list(group.new), list(group.new_positions)
            if not close(logits[rows, new], right[rows, positions]):
                return False
        return True

    def _frame(self, step: int, length: int) -> Frame:
        if (step, length) not in self._frames:
            one = self._steps[step]
            self._frames[step, length] = frame_of(places_of(one), one.size, length)
        return self._frames[step, length]

    def _rows(self, step: int) -> _Rows:
        """The rows of the own reference of `step`."""
        return self._keys[step][0]

    def _uncached(self, rows: _Rows) -> Tensor:
        """The logits of a plain uncached run over `rows`."""
        if rows not in self._plain:
            self._plain[rows] = run_uncached(self._subject, rows)
        return self._plain[rows]

    def _run(self, rows: _Rows, one_call: bool) -> Reference:
        whole = replace(self._case, tokens=rows, schedule=(len(rows[0]),))
        if one_call:
            with suppress(CachedPathRaised, Refused):
                cached = self._measured(lambda: run_cached(self._subject, whole))
                if agree(cached.logits, self._uncached(rows), self._subject):
                    return cached
        return self._measured(lambda: run_uncached(self._subject, rows))

    def _measured(self, run: Callable[[], Tensor]) -> Reference:
        return measured(self._subject, run, self._watched, self._whole)


def agree(found: Tensor, right: Tensor, subject: Subject) -> bool:
    """Whether two runs gave the same logits, but for rounding."""
    tolerance = constant(right, getattr(subject, "width", None), right.dtype)
    return not bool(compare(found, right, tolerance).diverges.any())


def _length(rows: Sequence[Sequence[int]], step: Step) -> int:
    """How many tokens a reference takes: those of the rows where these are alike, else some more,
    so that an axis of its tokens has a size of its own."""
    longest = max(map(len, rows))
    if all(len(row) == len(step.after[0]) for row in rows):
        return longest
    length = longest + 1
    while length in (step.size, len(step.after[0]), len(rows)):
        length += 1
    return length


def _begin(rows: _Rows, prefixes: _Rows) -> bool:
    """Whether each of `rows` begins with its own of `prefixes`."""
    return all(row[: len(one)] == one for row, one in zip(rows, prefixes, strict=True))


def _filled(rows: Sequence[tuple[int, ...]], length: int) -> _Rows:
    """`rows` filled up on the right, which a causal path does not see."""
    return tuple(row + row[-1:] * (length - len(row)) for row in rows)
