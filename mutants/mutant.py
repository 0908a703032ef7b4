"""A mutant: one fault, the function that makes it, and the promises that go with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvfuzz.case import Case
from kvfuzz.errors import InvalidSubject, one_line
from kvfuzz.injection import Fault, Faulty
from kvfuzz.sites import Site

CACHED = "kvfuzz.zoo.cached"
STATES = ("killed", "survived", "unreached", "loud", "timed_out", "equivalent", "invalid")


@dataclass(frozen=True)
class Mutant:
    """`operator` is the family of faults, `targets` the functions (`module:attribute`) of the
    cached path that `fault` replaces: it takes the real ones and returns its own. `witness` is a
    small case that kills it, and `site` the first state that then differs. `seen_in` is a public
    report of the same mistake. `equivalent` is the reason why no case can kill it. A `placebo`
    changes nothing, and must never be killed.

    A parametric fault has `sizes`: the smallest, by dtype, at which the checker promises to catch
    it on at least 99 of 100 random decoders (`benchmarks/detection.py`). It is injected at that
    size; at the largest of them in a dtype for which nothing is promised.
    """

    operator: str
    name: str
    description: str
    targets: tuple[str, ...]
    fault: Fault
    site: Site | None
    witness: Case | None
    subject: str = "zoo"
    seen_in: str | None = None
    equivalent: str | None = None
    placebo: bool = False
    sizes: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.operator}.{self.name}"

    @property
    def source(self) -> str:
        """The lines that make the fault."""
        return inspect.getsource(self.fault)

    def into(self, subject: Any, dtype: str, size: float | None = None) -> Faulty:
        """`subject`, which runs in `dtype`, with this fault in its cached path, at another `size`
        if one is given. Raises InvalidSubject if it does not fit, or if the fault's own function
        raises."""
        fault = self.fault
        if self.sizes:
            fault = functools.partial(fault, size=size or self.size(dtype))
        try:
            return Faulty(subject, self.targets, fault)
        except InvalidSubject:
            raise
        # A SystemExit in a plug-in's function would end the command, as if all were well.
        except (Exception, SystemExit) as error:
            raise InvalidSubject(
                f"the mutant {self.id} cannot be made: {one_line(error)}"
            ) from error

    def size(self, dtype: str) -> float:
        """The size of a parametric fault in `dtype`."""
        return self.sizes.get(dtype, max(self.sizes.values()))

    @property
    def sizes_text(self) -> str:
        """`1e-11 in float64, 0.0001 in float32` for a parametric fault, else nothing."""
        return ", ".join(f"{size:g} in {dtype}" for dtype, size in self.sizes.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "operator": self.operator,
            "description": self.description,
            "targets": list(self.targets),
            "site": str(self.site) if self.site else None,
            "subject": self.subject,
            "seen_in": self.seen_in,
            "equivalent": self.equivalent,
            "placebo": self.placebo,
            "sizes": dict(self.sizes),
            "witness": self.witness.to_json() if self.witness else None,
        }


def mutant(
    *targets: str,
    site: str | None = None,
    witness: Case | None = None,
    subject: str = "zoo",
    seen_in: str | None = None,
    equivalent: str | None = None,
    placebo: bool = False,
    sizes: Mapping[str, float] | None = None,
) -> Callable[[Fault], Mutant]:
    """Make the decorated function a mutant: its operator is the name of its file, its name the
    function's, its description the docstring.

    A target without a module is a stage of the registered decoder's cached path. With `sizes` the
    function takes an argument `size` too. Raises
    ValueError for a mutant that breaks its promises on sight.
    """

    def made(fault: Fault) -> Mutant:
        description = inspect.getdoc(fault)
        if not description:
            raise ValueError(f"the mutant {fault.__name__} needs a docstring that tells the fault")
        if not placebo and equivalent is None and (site is None or witness is None):
            raise ValueError(f"the mutant {fault.__name__} needs a site and a witness")
        return Mutant(
            operator=fault.__module__.rpartition(".")[2],
            name=fault.__name__,
            description=" ".join(description.split()),
            targets=tuple(t if ":" in t else f"{CACHED}:{t}" for t in targets),
            fault=fault,
            site=Site.parse(site) if site else None,
            witness=witness,
            subject=subject,
            seen_in=seen_in,
            equivalent=equivalent,
            placebo=placebo,
            sizes=sizes or {},
        )

    return made


def steps(*schedule: int, **config: Any) -> Case:
    """A witness: one row of the tokens 1, 2, 3, ... fed by `schedule`, in float64."""
    return Case((tuple(range(1, sum(schedule) + 1)),), schedule, dtype="float64", config=config)
