"""The pattern of a divergence: what a person would say of where it shows, and after what.

A pattern is a few features, and a feature is a set of plain words. Two patterns are as similar as
their features agree, each by the share of its words that they have in common, and some features
count more than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvfuzz.case.case import Case, Step
from kvfuzz.case.schedule import Padded
from kvfuzz.localize.location import Divergence, Location, SiteDifference

Pattern = Mapping[str, frozenset[str]]

WEIGHTS = {
    "operations": 12.0,
    "given": 5.0,
    "window": 5.0,
    "mix": 4.0,
    "site": 3.0,
    "cache": 3.0,
    "positions": 2.5,
    "where": 2.0,
    "count": 2.0,
    "size": 2.0,
    "layers": 1.0,
    "step": 1.0,
    "rows": 1.0,
}
"""How much each feature counts. What a case would not have if the fault did not need it, once it
is shrunk, tells most: an operation, an argument, a window."""

ALIKE = (("norm", "mlp_norm", "final_norm"), ("reset", "new"), ("rope", "alibi"))
"""Words that are half of the way to one another: norms, what begins a sequence anew, positions that
count by their distance."""
SLIGHT, ROUNDING = 1e-6, 1e-2
"""Below these a difference is slight, or of rounding, for states of the order of one."""


def similarity(one: Pattern, other: Pattern) -> float:
    """From 0 to 1: the weighted mean, over the features, of the share of words in common. A feature
    of which neither pattern has a word agrees."""
    agreed = sum(
        weight * _shared(one.get(name, frozenset()), other.get(name, frozenset()))
        for name, weight in WEIGHTS.items()
    )
    return agreed / sum(WEIGHTS.values())


def pattern(location: Location, case: Case) -> Pattern:
    """What `location` looks like, of `case`; no features, if no state differs.

    It needs the whole map of differences. Of the configuration it takes what the registered decoder
    calls `cache`, `mix`, `window` and `positions`, where that is not the plain thing.
    """
    if location.first is None:
        return {}
    seen = _Seen(location.first, location.cells, tuple(case.steps()))
    config = case.config
    words: dict[str, Iterator[str]] = {
        "operations": seen.operations(),
        "given": seen.given(case),
        "window": seen.window(config.get("window")),
        "mix": _setting(config.get("mix"), "uniform"),
        "site": _with_alike(location.first.site.kind),
        "cache": _setting(config.get("cache"), "concatenated"),
        "positions": _setting(config.get("positions"), "learned"),
        "where": seen.where(),
        "count": seen.count(),
        "size": seen.size(),
        "layers": seen.layers(),
        "step": iter((seen.step.kind,)),
        "rows": seen.rows(),
    }
    found = {name: frozenset(each) for name, each in words.items()}
    return {name: each for name, each in found.items() if each}


@dataclass(frozen=True)
class _Seen:
    """The first divergence, the map of differences, and the steps of the case: each method gives
    the words of one feature."""

    first: Divergence
    cells: tuple[SiteDifference, ...]
    steps: tuple[Step, ...]

    @property
    def step(self) -> Step:
        """The step that differs first."""
        return self.steps[self.first.step]

    def operations(self) -> Iterator[str]:
        """What was done to caches before. To go on with another cache is no deed of its own, nor
        is what begins the case."""
        for step in self.steps[1 : self.first.step]:
            if not step.feeds and step.kind != "switch":
                yield from _with_alike(
                    "reorder" if step.kind in ("select", "repeat") else step.kind
                )

    def given(self, case: Case) -> Iterator[str]:
        """Padding so far, and the arguments of calls beside the mask that it needs."""
        fed = [step.operation for step in self.steps[: self.first.step + 1]]
        sides = {operation.side for operation in fed if isinstance(operation, Padded)}
        if sides:
            yield "padding"
        yield from (f"padding on the {side}" for side in sides)
        yield from (word for word in case.given if word != "mask" or not sides)

    def window(self, window: object) -> Iterator[str]:
        """Whether there is a window, and whether as much was fed as it holds."""
        if isinstance(window, int):
            yield "there is one"
            if len(self.step.after[0]) >= window:
                yield "it is full"

    def where(self) -> Iterator[str]:
        """Which tokens differ at the first site: of earlier steps, of the step itself, or some."""
        held = min(map(_text_in, self.step.before))
        earlier, new = range(held), range(held, max(map(_text_in, self.step.after)))
        site = str(self.first.site)
        differing = {c.position for c in self._here() if c.site == site and 1 < c.excess < math.inf}
        for name, tokens in (("earlier", earlier), ("new", new)):
            if differing.intersection(tokens):
                yield f"{name} tokens"
                if not differing.issuperset(tokens):
                    yield f"some of the {name} tokens"

    def count(self) -> Iterator[str]:
        """Whether a layer holds too few entries, or too many."""
        due = len(self.step.after[0])
        yield from ("too many" if end >= due else "too few" for end in self._ends().values())

    def size(self) -> Iterator[str]:
        size = self.first.difference
        yield "slight" if size < SLIGHT else "of rounding" if size < ROUNDING else "whole"

    def layers(self) -> Iterator[str]:
        """In which layer it shows first, and whether all of them hold as many entries too few, or
        too many."""
        layer = self.first.site.layer
        yield "none" if layer is None else "the first" if layer == 0 else "a later one"
        ends = self._ends()
        caches = {cell.site for cell in self._here() if cell.site.endswith(".cache")}
        if len(ends) == len(caches) and len(set(ends.values())) == 1:
            yield "all alike"

    def rows(self) -> Iterator[str]:
        if self.step.batch > 1:
            yield "several"
            if self.first.row > 0:
                yield "not the first"

    def _here(self) -> Iterator[SiteDifference]:
        """The cells of the step that differs first."""
        return (cell for cell in self.cells if cell.step == self.first.step)

    def _ends(self) -> dict[str, int]:
        """For each cache that holds too few or too many entries, how many it has of those due."""
        caches = (cell for cell in self._here() if cell.site.endswith(".cache"))
        return {cell.site: cell.position for cell in caches if cell.excess == math.inf}


def _text_in(row: tuple[int | None, ...]) -> int:
    """How many slots of a row hold text."""
    return sum(token is not None for token in row)


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0


def _setting(value: object, plain: str) -> Iterator[str]:
    """The words of a setting, if it is not the `plain` one."""
    if value is not None and value != plain:
        yield from _with_alike(str(value))


def _with_alike(word: str) -> Iterator[str]:
    """`word`, and one that it shares with those that are ALIKE."""
    yield word
    yield from (f"like {words[0]}" for words in ALIKE if word in words)
