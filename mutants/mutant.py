"""A mutant: one fault, the function that makes it, and the promises that go with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.features import FEATURES, features_of
from kvfuzz.case.schedule import Entry, Padded
from kvfuzz.errors import InvalidSubject, one_line
from kvfuzz.oracle.laws import LAWS
from kvfuzz.subjects.injection import Fault, Faulty
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.trace import Site

ZOO = "kvfuzz.subjects.zoo"
CACHED = f"{ZOO}.cached"
_NONE = object()
VACUITY = "vacuity"
"""What tells a fault by which both paths agree, since neither looks at what is cached."""
LATENT = "latent"
"""What tells a fault that the logits do not show: a state of the cached path differs."""
LOCATED = ("agreement", LATENT)
"""What tells a fault that has a site: the first state that differs."""
STATES = (
    *("killed", "survived", "unreached", "timed_out"),
    *("loud", "crashed", "invalid", "equivalent", "inapplicable"),
)
ANY = "any"
"""The subject of a fault that fits every one (`mutants.generic`)."""


@dataclass(frozen=True)
class Mutant:
    """`operator` is the family of faults, `targets` the functions (`module:attribute`) of the
    cached path that `fault` replaces: it takes the real ones and returns its own. `witness` is a
    small case that kills it, and `site` the first state that then differs. `seen_in` is a public
    report of the same mistake. `equivalent` is the reason why no case can kill it. A `placebo`
    changes nothing, and must never be killed; a `canary` is one that must always be. Both watch
    over a campaign and are no part of its score.

    A parametric fault has `sizes`: the smallest, by dtype, at which the checker promises to catch
    it on at least 99 of 100 random decoders (`benchmarks/detection.py`). It is injected at that
    size; at the largest of them in a dtype for which nothing is promised.

    `needs` are the settings with which the fault makes sense, by field; `fitted` cases have one of
    them. `law` is what sees it (`kvfuzz.oracle.laws`, VACUITY or LATENT): besides agreement a case
    is judged by that. With `both` the targets are replaced in the uncached path too.

    `advice` says what to draw so that it is caught, and `inapplicable` why the subject that is
    scored has nothing for it to change.
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
    canary: bool = False
    sizes: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    law: str = "agreement"
    both: bool = False
    advice: str = ""
    inapplicable: str | None = None

    @property
    def id(self) -> str:
        return f"{self.operator}.{self.name}"

    @property
    def is_control(self) -> bool:
        """Whether it watches over a campaign, and is no part of the score."""
        return self.placebo or self.canary

    @property
    def without_site(self) -> str:
        """Why it has no site."""
        return "placebo" if self.placebo else "equivalent" if self.equivalent else self.law

    @property
    def exercises(self) -> tuple[str, ...]:
        """The features (`kvfuzz.case.features`) of its witness, which a case that kills it has too.
        `benchmarks/declarations.py` compares them with the kills."""
        found = features_of(self.witness) if self.witness else frozenset[str]()
        return tuple(word for word in FEATURES if word in found)

    @property
    def source(self) -> str:
        """The lines that make the fault."""
        return inspect.getsource(self.fault)

    def with_required_config(self, case: Case) -> Case:
        """`case` with the first setting that fits in place of each that does not: the same tokens,
        schedule and seed."""
        config = self.required_config(case.config)
        return replace(case, config={**case.config, **config}) if config else case

    def required_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that it needs: those of `config` that fit, and the first fit for others."""
        return {
            name: config[name] if config.get(name, _NONE) in fit else fit[0]
            for name, fit in self.needs.items()
        }

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """Whether the fault makes sense with these `settings`, which someone has fixed."""
        return all(settings.get(name, fit[0]) in fit for name, fit in self.needs.items())

    def resolve(self, factory: Factory, cases: Sequence[Case]) -> Mutant:  # noqa: ARG002
        """This fault as it fits the subjects of `factory` that `cases` are run on: as it is."""
        return self

    def into(self, subject: Any, dtype: str, size: float | None = None) -> Faulty:
        """`subject`, which runs in `dtype`, with this fault in its cached path, at another `size`
        if one is given. Raises InvalidSubject if it does not fit, or if the fault's own function
        raises."""
        fault = self.fault
        if self.sizes:
            fault = functools.partial(fault, size=size or self.size(dtype))
        try:
            return Faulty(subject, self.targets, fault, both=self.both)
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
            "canary": self.canary,
            "sizes": dict(self.sizes),
            "needs": {name: list(values) for name, values in self.needs.items()},
            "law": self.law,
            "exercises": list(self.exercises),
            "both": self.both,
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
    canary: bool = False,
    sizes: Mapping[str, float] | None = None,
    needs: Mapping[str, tuple[Any, ...]] | None = None,
    law: str = "agreement",
    both: bool = False,
) -> Callable[[Fault], Mutant]:
    """Make the decorated function a mutant: its operator is the name of its file, its name the
    function's, its description the docstring.

    A target without a module is a stage of the registered decoder's cached path; one that begins
    with a dot is in the decoder's package. With `sizes` the function takes an argument `size` too.
    `needs` come on top of the file's own NEEDS. Raises ValueError for a mutant that breaks its
    promises on sight.
    """

    def made(fault: Fault) -> Mutant:
        description = inspect.getdoc(fault)
        if not description:
            raise ValueError(f"the mutant {fault.__name__} needs a docstring that tells the fault")
        told = law in LOCATED and not placebo and equivalent is None
        if (told and site is None) or (not placebo and equivalent is None and witness is None):
            raise ValueError(f"the mutant {fault.__name__} needs a site and a witness")
        if law not in (*LAWS, VACUITY):
            raise ValueError(f"the mutant {fault.__name__} is told by no law {law!r}")
        return Mutant(
            operator=fault.__module__.rpartition(".")[2],
            name=fault.__name__,
            description=" ".join(description.split()),
            targets=tuple(map(_target, targets)),
            fault=fault,
            site=Site.parse(site) if site else None,
            witness=witness,
            subject=subject,
            seen_in=seen_in,
            equivalent=equivalent,
            placebo=placebo,
            canary=canary,
            sizes=sizes or {},
            needs={**getattr(fault, "__globals__", {}).get("NEEDS", {}), **(needs or {})},
            law=law,
            both=both,
        )

    return made


def _target(target: str) -> str:
    """The `module:attribute` that `target` stands for."""
    if ":" not in target:
        return f"{CACHED}:{target}"
    return f"{ZOO}{target}" if target.startswith(".") else target


def steps(*schedule: Entry, rows: int = 1, given: tuple[str, ...] = (), **config: Any) -> Case:
    """A witness: `rows` rows of the tokens 1, 2, 3, ..., each going on where the last one ends, fed
    by `schedule`, in float64. Where there is padding, calls are given a mask."""
    padded = any(isinstance(entry, Padded) for entry in schedule)
    sizes = (entry.size if isinstance(entry, Padded) else entry for entry in schedule)
    columns = sum(size for size in sizes if isinstance(size, int))
    tokens = [tuple(range(1 + row * columns, 1 + (row + 1) * columns)) for row in range(rows)]
    told = tuple(sorted({*given, "mask"})) if padded else given
    return Case(tuple(tokens), schedule, dtype="float64", config=config, given=told)
