"""A case: one experiment, as plain data that any worker on any machine can repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from kvfuzz.case.dtypes import DTYPES
from kvfuzz.case.schedule import (
    FEEDING,
    Entry,
    Fork,
    Join,
    New,
    Operation,
    Padded,
    Ragged,
    Reorder,
    Switch,
    Tree,
    columns_of,
    entry_from_json,
    entry_text,
    entry_to_json,
)
from kvfuzz.case.slots import (
    Slots,
    feed,
    is_alive,
    join,
    operate,
    require,
    without_empty_end,
)
from kvfuzz.errors import InvalidCase

GIVEN = ("mask", "positions")
"""The optional arguments of `cached` that a case may pass in every call."""
KEEP = "logits_to_keep"
"""The optional argument of `cached` that gets the `keep` of a case."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a case.

    It changes the slots of cache number `cache` from `before` to `after`. A step that feeds
    (`operation` is None or FEEDING) takes the columns `start` to `stop` of the token table;
    for any other operation `start` equals `stop`. A fork copies cache number `source`, a join ends
    it.
    """

    index: int
    start: int
    stop: int
    cache: int = 0
    operation: Operation | None = None
    before: Slots = ((),)
    after: Slots = ((),)
    source: int | None = None

    @property
    def kind(self) -> str:
        """`prefill` for a call on an empty cache, `decode` for one token, `extend` for a later
        chunk; else the word of the operation (for Reorder: `reorder`, `select` or `repeat`)."""
        if isinstance(self.operation, Reorder):
            return self.operation.kind(len(self.before))
        if not self.feeds:
            assert self.operation is not None
            return self.operation.word
        if not self.filled:
            return "prefill"
        return "decode" if self.stop - self.start == 1 else "extend"

    @property
    def feeds(self) -> bool:
        """Whether the step calls `cached` with tokens."""
        return self.operation is None or isinstance(self.operation, FEEDING)

    @property
    def filled(self) -> bool:
        """Whether the cache holds something before the step."""
        return any(self.before)

    @property
    def batch(self) -> int:
        """The number of rows of the cache after the step."""
        return len(self.after)

    @property
    def size(self) -> int:
        """The number of columns that the step feeds."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of tokens, and the schedule by which they enter the caches of one model.

    `tokens` is a table [rows][columns]. Each feeding entry of `schedule` takes the next columns:
    row i of the current cache is fed from row i of the table (rows that the cache does not have are
    unused). Every call gets the optional arguments named in `given` and, if `keep` is not None, is
    asked for the logits of its last `keep` positions alone (0: of all, and of no more than it
    feeds). The subject is built from `seed`, `dtype` and `config` (JSON values). Raises
    InvalidCase, which names the wrong value.
    """

    tokens: tuple[tuple[int, ...], ...]
    schedule: tuple[Entry, ...]
    seed: int = 0
    dtype: str = "float32"
    config: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    keep: int | None = None

    def __post_init__(self) -> None:
        if not self.tokens or not self.tokens[0]:
            raise InvalidCase("a case needs at least one row of at least one token, got none")
        lengths = sorted({len(row) for row in self.tokens})
        if len(lengths) > 1:
            raise InvalidCase(f"all rows of a case have one length, got lengths {lengths}")
        odd = next((value for value in chain(*self.tokens) if type(value) is not int), None)
        if odd is not None:
            raise InvalidCase(f"tokens should hold integers, got {odd!r}")
        sizes = [columns_of(entry) for entry in self.schedule]
        if (
            any(size < 1 for size in sizes if size is not None)
            or sum(filter(None, sizes)) != (lengths[0])
        ):
            entries = [e if isinstance(e, int) else entry_text(e) for e in self.schedule]
            raise InvalidCase(
                f"schedule {entries} should be positive chunk sizes that sum to "
                f"the {lengths[0]} tokens of a row"
            )
        if self.dtype not in DTYPES:
            raise InvalidCase(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if not set(self.given) <= set(GIVEN) or sorted(set(self.given)) != list(self.given):
            raise InvalidCase(f"given should name {' and '.join(GIVEN)}, got {list(self.given)}")
        if self.keep is not None and (type(self.keep) is not int or self.keep < 0):
            raise InvalidCase(f"keep should be 0 or more, or None, got {self.keep!r}")
        if not self.is_plain:
            for _ in self.steps():
                pass  # following the caches checks each entry

    @property
    def is_plain(self) -> bool:
        """Whether all rows share one cache, and the schedule only feeds it."""
        return all(type(entry) is int for entry in self.schedule)

    @property
    def is_simple(self) -> bool:
        """Whether the three methods of the protocol are enough to run it."""
        return self.is_plain and not self.arguments

    @property
    def is_uneven(self) -> bool:
        """Whether rows of one cache get lengths of their own, without a mask that tells which slots
        are text."""
        if self.is_plain or "mask" in self.given:
            return False
        return any(None in row for step in self.steps() for row in step.after)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the optional arguments that every call gets."""
        return self.given if self.keep is None else (*self.given, KEEP)

    @property
    def batch(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return len(self.tokens[0])

    @property
    def reads_cache(self) -> bool:
        """Whether a step feeds a cache that is not empty."""
        if self.is_plain:
            return len(self.schedule) > 1
        return any(step.feeds and step.filled for step in self.steps())

    def up_to_call(self, number: int) -> Case:
        """Returns this case up to its call number `number` (from 1); whole if it has no more."""
        last = [step for step in self.steps() if step.feeds][:number][-1]
        return replace(
            self, tokens=self.prefix(last.stop), schedule=self.schedule[: last.index + 1]
        )

    def prefix(self, stop: int) -> tuple[tuple[int, ...], ...]:
        """Returns the first `stop` tokens of every row."""
        return tuple(row[:stop] for row in self.tokens)

    def steps(self) -> Iterator[Step]:
        """Yields the steps in order. Raises InvalidCase for an entry that cannot come where it
        is."""
        return iter(_steps(self.tokens, self.schedule, self.given))

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": [list(row) for row in self.tokens],
            "schedule": [entry_to_json(entry) for entry in self.schedule],
            "seed": self.seed,
            "dtype": self.dtype,
            "config": dict(self.config),
            **({"given": list(self.given)} if self.given else {}),
            **({"keep": self.keep} if self.keep is not None else {}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Case:
        """Reads what `to_json` wrote. Raises InvalidCase, which names the wrong field."""
        if not isinstance(data, dict):
            raise InvalidCase(f"a case is a JSON object, got {type(data).__name__}")
        missing = sorted({"tokens", "schedule", "seed", "dtype"} - set(data))
        if missing:
            raise InvalidCase(f"the case has no {missing[0]!r}")
        tokens = _lists_of_integers(data["tokens"])
        config, given = data.get("config", {}), data.get("given", [])
        if not isinstance(config, dict):
            raise InvalidCase(f"'config' should be an object, got {config!r}")
        if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
            raise InvalidCase(f"'given' should be a list of words, got {given!r}")
        if not isinstance(data["schedule"], list):
            raise InvalidCase(f"'schedule' should be a list, got {data['schedule']!r}")
        return cls(
            tokens=tokens,
            schedule=tuple(map(entry_from_json, data["schedule"])),
            seed=_integer("seed", data["seed"]),
            dtype=str(data["dtype"]),
            config=config,
            given=tuple(given),
            keep=data.get("keep"),
        )


Rows = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=32)  # judging a case follows it a dozen times
def _steps(tokens: Rows, schedule: tuple[Entry, ...], given: tuple[str, ...]) -> tuple[Step, ...]:
    """Follows the caches of a case from entry to entry."""
    caches: list[Slots] = [] if isinstance(schedule[0], New) else [((),) * len(tokens)]
    steps: list[Step] = []
    current, column = 0, 0
    for index, entry in enumerate(schedule):
        operation = None if isinstance(entry, int) else entry
        source = current if isinstance(entry, Fork) else None
        source = entry.cache if isinstance(entry, Join) else source
        before = caches[current] if caches else ()
        match entry:
            case int() | Padded() | Ragged() | Tree():
                stop = column + (columns_of(entry) or 0)
                after = feed(before, [row[column:stop] for row in tokens], operation, given)
            case New(rows):
                require(1 <= rows <= len(tokens), entry, f"1 to {len(tokens)} rows")
                after, stop = ((),) * rows, column
            case Switch(cache):
                require(is_alive(caches, cache), entry, f"one of the {len(caches)} caches")
                current, before = cache, caches[cache]
                after, stop = before, column
            case Join(cache):
                other = is_alive(caches, cache) and cache != current
                require(other, entry, f"another of the {len(caches)} caches")
                after, stop = join(before, caches[cache], entry, len(tokens), given), column
                caches[cache] = ()
            case _:
                after, stop = operate(before, entry, len(tokens), given), column
        if isinstance(entry, New | Fork):
            caches.append(after)
            current = len(caches) - 1
        # Once a row has kept its branch, the candidates at the end that no row kept are gone.
        caches[current] = without_empty_end(after) if isinstance(entry, Tree) else after
        steps.append(Step(index, column, stop, current, operation, before, after, source))
        column = stop
    return tuple(steps)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCase(f"{name!r} should hold integers, got {value!r}")
    return value


def _lists_of_integers(values: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(values, list):
        raise InvalidCase(f"'tokens' should be a list of rows, got {values!r}")
    return tuple(_row(row) for row in values)


def _row(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise InvalidCase(f"'tokens' should be a list of integers, got {values!r}")
    return tuple(_integer("tokens", value) for value in values)
