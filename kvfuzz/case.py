"""A case: one experiment, as plain data that any worker and any machine can repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from kvfuzz.errors import InvalidCase

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Step:
    """One call on the cache: it appends the positions `start` to `stop` of every row."""

    index: int
    start: int
    stop: int

    @property
    def kind(self) -> str:
        """`prefill` for the first call, `decode` for one token, `extend` for a later chunk."""
        if self.index == 0:
            return "prefill"
        return "decode" if self.stop - self.start == 1 else "extend"


@dataclass(frozen=True, slots=True)
class Case:
    """Token rows, and the steps by which they reach the cache of one built model.

    `tokens` holds one tuple per row, all of one length; `schedule` holds the number of tokens
    that each step appends and sums to that length; `seed`, `dtype` and `config` (JSON values)
    are what the subject is built with. Raises InvalidCase for anything else.
    """

    tokens: tuple[tuple[int, ...], ...]
    schedule: tuple[int, ...]
    seed: int = 0
    dtype: str = "float32"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens or not self.tokens[0]:
            raise InvalidCase("a case needs at least one row of at least one token, got none")
        lengths = sorted({len(row) for row in self.tokens})
        if len(lengths) > 1:
            raise InvalidCase(f"the rows of a case have one length, got lengths {lengths}")
        for name, values in (("tokens", chain(*self.tokens)), ("schedule", self.schedule)):
            odd = next((value for value in values if type(value) is not int), None)
            if odd is not None:
                raise InvalidCase(f"{name} should hold integers, got {odd!r}")
        if any(size < 1 for size in self.schedule) or sum(self.schedule) != lengths[0]:
            raise InvalidCase(
                f"schedule {list(self.schedule)} should be positive chunk sizes that sum to "
                f"the {lengths[0]} tokens of a row"
            )
        if self.dtype not in DTYPES:
            raise InvalidCase(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    @property
    def batch(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return len(self.tokens[0])

    def prefix(self, stop: int) -> tuple[tuple[int, ...], ...]:
        """The first `stop` tokens of every row."""
        return tuple(row[:stop] for row in self.tokens)

    def steps(self) -> Iterator[Step]:
        """The calls on the cache, in order."""
        start = 0
        for index, size in enumerate(self.schedule):
            yield Step(index, start, start + size)
            start += size

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": [list(row) for row in self.tokens],
            "schedule": list(self.schedule),
            "seed": self.seed,
            "dtype": self.dtype,
            "config": dict(self.config),
        }

    @classmethod
    def from_json(cls, data: Any) -> Case:
        """The case that `to_json` wrote. Raises InvalidCase naming the field that is wrong."""
        if not isinstance(data, dict):
            raise InvalidCase(f"a case is a JSON object, got {type(data).__name__}")
        missing = sorted({"tokens", "schedule", "seed", "dtype"} - set(data))
        if missing:
            raise InvalidCase(f"the case has no {missing[0]!r}")
        tokens = _lists_of_integers(data["tokens"])
        config = data.get("config", {})
        if not isinstance(config, dict):
            raise InvalidCase(f"'config' should be an object, got {config!r}")
        return cls(
            tokens=tokens,
            schedule=_integers("schedule", data["schedule"]),
            seed=_integer("seed", data["seed"]),
            dtype=str(data["dtype"]),
            config=config,
        )


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCase(f"{name!r} should hold integers, got {value!r}")
    return value


def _integers(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise InvalidCase(f"{name!r} should be a list of integers, got {values!r}")
    return tuple(_integer(name, value) for value in values)


def _lists_of_integers(values: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(values, list):
        raise InvalidCase(f"'tokens' should be a list of rows, got {values!r}")
    return tuple(_integers("tokens", row) for row in values)
