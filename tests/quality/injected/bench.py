"""Runs the table of faults: does each show, and does `kvfuzz.locate` name its line?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import kvfuzz
from kvfuzz.case.verdict import Verdict
from kvfuzz.localize.location import Line, Location
from kvfuzz.subjects.protocol import Factory
from tests.quality.injected.copies import Copy, Place, copied, library_file
from tests.quality.injected.faults import Fault
from tests.quality.injected.reach import Operation, operations, reached
from tests.quality.injected.subjects import factory_of

Hit = Literal["injected", "reached", "miss", "outside", "none"]
HITS: tuple[Hit, ...] = ("injected", "reached", "miss", "outside", "none")
"""What a reported line may be, best first; only the first two are hits."""


@dataclass(frozen=True)
class Injected:
    """A fault in its copy, ready to be run. `reached` are the lines that it reaches first."""

    fault: Fault
    copy: Copy
    factory: Factory
    case: kvfuzz.Case
    reached: tuple[Place, ...]

    def verdict(self) -> Verdict:
        return kvfuzz.check(self.factory.subject(self.case), self.case)

    def locate(self) -> Location | None:
        return kvfuzz.locate(self.factory, self.case)

    def line(self, location: Location | None) -> Line | None:
        """Returns the line that `location` names in the cached path; if the uncached path is wrong,
        the better of the lines in both."""
        first = location.first if location else None
        if first is None:
            return None
        both = [first.source, first.partner if self.fault.path == "uncached" else None]
        named = sorted(filter(None, both), key=lambda line: HITS.index(self.hit(line)))
        return named[0] if named else None

    def hit(self, line: Line | None) -> Hit:
        """Classifies a reported line: the fault's own, one that it reaches first, another line of
        the copy, a line outside the copy, or no line."""
        if line is None:
            return "none"
        path = Path(line.file)
        if path.parent.name != self.copy.package:
            return "outside"
        place = (path.stem, line.line)
        if place in self.copy.lines:
            return "injected"
        return "reached" if place in self.reached else "miss"

    def declared(self) -> Place | None:
        """Returns the line that the table says the fault reaches."""
        anchor = self.fault.reaches
        if anchor is None:
            return None
        path = self.copy.folder / library_file(anchor.file or self.fault.model).name
        return path.stem, anchor.line(path.read_text(encoding="utf-8"))


class Bench:
    """Makes copies with and without faults, below the folder `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clean = lru_cache(self._made_clean)

    @contextmanager
    def injected(self, fault: Fault) -> Iterator[Injected]:
        """Yields the copy with `fault`; removes it afterwards."""
        name = f"faulty_{fault.model}_{fault.id}"
        copy = copied(fault.model, name, self._root, fault.edits)
        try:
            factory = factory_of(copy, fault.model, fault.attn, fault.cache)
            case = fault.case(factory.first_config())
            lines = self._reached(fault, copy, factory, case)
            yield Injected(fault, copy, factory, case, lines)
        finally:
            copy.forget()

    def clean(self, fault: Fault) -> Verdict:
        """Returns the verdict of the copy without the fault, on the same case."""
        factory, case = self.without(fault)
        return kvfuzz.check(factory.subject(case), case)

    def without(self, fault: Fault) -> tuple[Factory, kvfuzz.Case]:
        """Returns the factory of the copy without the fault, and the case that shows the fault."""
        _, factory = self._clean(fault.model, fault.attn, fault.cache)
        return factory, fault.case(factory.first_config())

    def _reached(
        self, fault: Fault, copy: Copy, factory: Factory, case: kvfuzz.Case
    ) -> tuple[Place, ...]:
        clean, clean_factory = self._clean(fault.model, fault.attn, fault.cache)
        faulty = operations(copy, factory, case, fault.path)
        before = operations(clean, clean_factory, case, fault.path)
        return reached(faulty, before, self._other(fault, clean, clean_factory, case), copy.lines)

    def _other(
        self, fault: Fault, clean: Copy, factory: Factory, case: kvfuzz.Case
    ) -> list[Operation]:
        return operations(clean, factory, case, "uncached" if fault.path == "cached" else "cached")

    def _made_clean(self, model: str, attn: str, cache: str) -> tuple[Copy, Factory]:
        copy = copied(model, f"clean_{model}_{attn}_{cache}", self._root)
        return copy, factory_of(copy, model, attn, cache)
