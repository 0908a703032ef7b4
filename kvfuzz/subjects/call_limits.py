"""The limits of a call: which calls a subject takes, and of which positions it returns logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvfuzz.case.case import Case, Step
from kvfuzz.case.schedule import Entry
from kvfuzz.errors import InvalidSubject


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The calls of `cached` that a subject takes, besides those of a single token.

    A call has at most `longest` tokens (None: any number) and a multiple of `multiple`. Without
    `chunks` only an empty cache takes more than one token. With `last_only` a call returns the
    logits of its last position alone. No call of either path has more than `rows` rows (None: any
    number). Without `padding_between` padding stands only before the first token of a row: nothing
    is fed behind padding on the right, and none to a cache that holds text.
    """

    longest: int | None = None
    chunks: bool = True
    multiple: int = 1
    last_only: bool = False
    rows: int | None = None
    padding_between: bool = True

    def takes(self, size: int, filled: bool) -> bool:
        """Whether a call of `size` tokens is taken by a cache that is `filled` or empty."""
        return size == self._most(size, filled)

    def pieces(self, size: int, filled: bool) -> tuple[int, ...]:
        """Returns the fewest calls that feed `size` tokens, the largest first."""
        found: list[int] = []
        while (left := size - sum(found)) > 0:
            found.append(self._most(left, filled))
            filled = True
        return tuple(found)

    def divided(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the calls that feed a new cache in place of calls of these `sizes`."""
        return tuple(
            piece
            for number, size in enumerate(sizes)
            for piece in self.pieces(size, filled=number > 0)
        )

    def _most(self, size: int, filled: bool) -> int:
        if filled and not self.chunks:
            return 1
        most = min(size, self.longest or size)
        return most - most % self.multiple or 1

    def refused_step(self, case: Case) -> Step | None:
        """Returns the first step of `case` that is a call which is not taken, or that makes a cache
        of too many rows; None if there is none."""
        if replace(self, last_only=False) == ANY_CALL:
            return None
        return next((step for step in case.steps() if self._refuses(case, step)), None)

    def _refuses(self, case: Case, step: Step) -> bool:
        if self.rows is not None and step.batch > self.rows:
            return True
        if not step.feeds:
            return False
        apart = not self.padding_between and "mask" in case.given
        return not self.takes(step.size, step.filled) or (apart and any(map(_is_split, step.after)))

    def fitted(self, case: Case) -> Case | None:
        """Returns `case` with several calls in place of each that is not taken; None where that is
        not possible."""
        if self.refused_step(case) is None:
            return case
        schedule: list[Entry] = []
        for step, entry in zip(case.steps(), case.schedule, strict=True):
            if not step.feeds or self.takes(step.size, step.filled):
                schedule.append(entry)
            elif isinstance(entry, int):
                schedule += self.pieces(entry, step.filled)
            else:
                return None
        found = replace(case, schedule=tuple(schedule))
        return found if self.refused_step(found) is None else None

    def texts(self) -> tuple[str, ...]:
        """Says the limits for a reader; empty if there are none."""
        sizes = [
            f"at most {self.longest} tokens" if self.longest else "",
            f"one or a multiple of {self.multiple}" if self.multiple > 1 else "",
            "one once the cache is filled" if not self.chunks else "",
        ]
        calls = "calls of " + ", of ".join(filter(None, sizes)) if any(sizes) else ""
        logits = "logits of the last position of each call alone" if self.last_only else ""
        rows = f"rows of a call at most {self.rows}" if self.rows else ""
        padding = "" if self.padding_between else "no padding behind the first token of a row"
        return tuple(f"{text}, as declared" for text in (calls, logits, rows, padding) if text)


ANY_CALL = CallLimits()
"""The limits of a subject that declares none."""
LIMITS = ("longest_call", "chunks", "multiple_of", "max_rows", "padding_between")
"""The attributes by which a subject declares which calls it takes."""
_COUNT, _FLAG = "a positive integer", "True or False"


def call_limits_of(subject: Any, name: str = "subject") -> CallLimits:
    """Returns the limits that `subject` declares. Raises InvalidSubject for values that make no
    sense, alone or together."""
    longest = getattr(subject, "longest_call", None)
    chunks: Any = getattr(subject, "chunks", True)
    multiple: Any = getattr(subject, "multiple_of", 1)
    last_only: Any = getattr(subject, "last_only", False)
    rows = getattr(subject, "max_rows", None)
    between: Any = getattr(subject, "padding_between", True)
    for word, value, wanted, holds in (
        ("longest_call", longest, f"{_COUNT} or None", longest is None or _is_count(longest)),
        ("chunks", chunks, _FLAG, isinstance(chunks, bool)),
        ("multiple_of", multiple, _COUNT, _is_count(multiple)),
        ("last_only", last_only, _FLAG, isinstance(last_only, bool)),
        ("max_rows", rows, f"{_COUNT} or None", rows is None or _is_count(rows)),
        ("padding_between", between, _FLAG, isinstance(between, bool)),
    ):
        if not holds:
            raise InvalidSubject(f"{name}.{word} should be {wanted}, got {value!r}")
    if longest is not None and 1 < longest < multiple:
        raise InvalidSubject(
            f"{name}.longest_call = {longest} leaves no multiple of {multiple} (multiple_of)"
        )
    return CallLimits(longest, chunks, multiple, last_only, rows, between)


def most_rows(subject: Any, wanted: int) -> int:
    """Returns `wanted` rows, or fewer if a call of `subject` takes fewer."""
    return min(wanted, call_limits_of(subject).rows or wanted)


def _is_split(slots: tuple[int | None, ...]) -> bool:
    """Whether padding stands between the tokens of a row."""
    text = [slot for slot, token in enumerate(slots) if token is not None]
    return bool(text) and text[-1] - text[0] >= len(text)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
