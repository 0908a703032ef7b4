"""A mutant: one fault, the function that makes it, and the promises that go with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
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

    @property
    def id(self) -> str:
        return f"{self.operator}.{self.name}"

    @property
    def source(self) -> str:
        """The lines that make the fault."""
        return inspect.getsource(self.fault)

    def into(self, subject: Any) -> Faulty:
        """`subject` with this fault in its cached path. Raises InvalidSubject if it does not
        fit, or if the fault's own function raises."""
        try:
            return Faulty(subject, self.targets, self.fault)
        except InvalidSubject:
            raise
        # A SystemExit in a plug-in's function would end the command, as if all were well.
        except (Exception, SystemExit) as error:
            raise InvalidSubject(
                f"the mutant {self.id} cannot be made: {one_line(error)}"
            ) from error

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
) -> Callable[[Fault], Mutant]:
    """Make the decorated function a mutant: its operator is the name of its file, its name the
    function's, its description the docstring.

    A target without a module is a stage of the registered decoder's cached path. Raises
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
        )

    return made


def steps(*schedule: int, **config: Any) -> Case:
    """A witness: one row of the tokens 1, 2, 3, ... fed by `schedule`, in float64."""
    return Case((tuple(range(1, sum(schedule) + 1)),), schedule, dtype="float64", config=config)
