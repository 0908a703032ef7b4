"""A mutant: one fault, the function that makes it, and what it declares about itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from kvfuzz.case.case import Case
from kvfuzz.case.features import FEATURES, features_of
from kvfuzz.case.schedule import Entry, Padded, columns_of
from kvfuzz.errors import InvalidSubject, one_line
from kvfuzz.oracle.laws import LAWS
from kvfuzz.subjects.injection import Fault, Faulty
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.trace import Site

ZOO = "kvfuzz.subjects.zoo"
CACHED = f"{ZOO}.cached"
_NONE = object()
VACUITY = "vacuity"
"""The law that a fault breaks where the paths agree because neither reads the cache."""
LATENT = "latent"
"""The law that a fault breaks where a state of the cached path differs and the logits agree."""
LOCATED = ("agreement", LATENT)
"""The laws of faults that have a site: the first state that differs."""
STATES = (
    *("killed", "survived", "unreached", "timed_out"),
    *("loud", "crashed", "invalid", "equivalent", "inapplicable"),
)
ANY = "any"
"""The subject of a fault that fits any subject (`mutants.generic`)."""


@dataclass(frozen=True)
class Mutant:
    """One fault of the cached path.

    `operator` is the family of faults. `targets` are the functions (`module:attribute`) that the
    fault replaces: `fault` takes the real ones and returns its own. `witness` is a small case that
    kills the mutant, and `site` the first state that then differs. `seen_in` is a public report of
    the same bug. `equivalent` is the reason why no case can kill it. A `placebo` changes nothing
    and must survive; a `canary` must be killed. Both are controls, and no part of the score.

    A parametric fault has `sizes`, by dtype: the smallest at which the checker promises to catch it
    on at least 99 of 100 random decoders (`benchmarks/detection.py`). It is injected at that size,
    and at the largest of them in a dtype without a promise.

    `needs` are the settings, by field, without which the fault makes no sense; every case that the
    mutant runs on has one of them. `law` is the law that the fault breaks (one of
    `kvfuzz.oracle.laws`, or VACUITY); a case is judged by agreement and by that law. With `both`
    the targets are replaced in the uncached path too.

    `advice` says what to draw so that the fault is caught. `inapplicable` says why the subject has
    nothing for it to change.
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
        """Whether it is a placebo or a canary, which check the campaign and are not scored."""
        return self.placebo or self.canary

    @property
    def without_site(self) -> str:
        """The reason why it has no site."""
        return "placebo" if self.placebo else "equivalent" if self.equivalent else self.law

    @property
    def exercises(self) -> tuple[str, ...]:
        """The features (`kvfuzz.case.features`) of its witness, which a case that kills it has too.
        `benchmarks/declarations.py` compares them with the kills."""
        found = features_of(self.witness) if self.witness else frozenset[str]()
        return tuple(word for word in FEATURES if word in found)

    @property
    def source(self) -> str:
        """Source code of the fault."""
        return inspect.getsource(self.fault)

    def with_required_config(self, case: Case) -> Case:
        """Returns `case` with the settings that the fault needs: the first that fits in place of
        each that does not. Tokens, schedule and seed stay."""
        config = self.required_config(case.config)
        return replace(case, config={**case.config, **config}) if config else case

    def required_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings that the fault needs: that of `config` where it fits, else the first
        that does."""
        return {
            name: config[name] if config.get(name, _NONE) in fit else fit[0]
            for name, fit in self.needs.items()
        }

    def fits(self, settings: Mapping[str, Any]) -> bool:
        """Whether the fault makes sense with these fixed `settings`."""
        return all(settings.get(name, fit[0]) in fit for name, fit in self.needs.items())

    def resolve(self, factory: Factory, cases: Sequence[Case]) -> Mutant:  # noqa: ARG002
        """Returns this mutant as it applies to the subjects of `factory`; a generic one may turn
        out inapplicable or equivalent."""
        return self

    def into(self, subject: Any, dtype: str, size: float | None = None) -> Faulty:
        """Returns `subject`, which runs in `dtype`, with this fault in its cached path.

        `size` replaces the declared size of a parametric fault. Raises InvalidSubject if the fault
        does not fit, or if its function raises.
        """
        fault = self.fault
        if self.sizes:
            fault = functools.partial(fault, size=size or self.size(dtype))
        try:
            return Faulty(subject, self.targets, fault, both=self.both)
        except InvalidSubject:
            raise
        # A SystemExit in a plug-in's function would end the command with exit code 0.
        except (Exception, SystemExit) as error:
            raise InvalidSubject(
                f"the mutant {self.id} cannot be made: {one_line(error)}"
            ) from error

    def size(self, dtype: str) -> float:
        """Returns the size of a parametric fault in `dtype`."""
        return self.sizes.get(dtype, max(self.sizes.values()))

    @property
    def sizes_text(self) -> str:
        """`1e-11 in float64, 0.0001 in float32` for a parametric fault, else empty."""
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


class Declared(TypedDict, total=False):
    """What a mutant declares, as the fields of Mutant; `site` as text."""

    site: str | None
    witness: Case | None
    subject: str
    seen_in: str | None
    equivalent: str | None
    placebo: bool
    canary: bool
    sizes: Mapping[str, float]
    needs: Mapping[str, tuple[Any, ...]]
    law: str
    both: bool


def mutant(*targets: str, **declared: Unpack[Declared]) -> Callable[[Fault], Mutant]:
    """Makes the decorated function a mutant. Its operator is the name of its file, its name the
    function's, its description the docstring.

    A target without a module is a function of the built-in decoder's cached path; one that begins
    with a dot is in the decoder's package. With `sizes` the function takes an argument `size` too.
    `needs` add to the NEEDS of the file. Raises ValueError for a mutant that lacks a declaration.
    """

    def make(fault: Fault) -> Mutant:
        site, needs = declared.get("site"), declared.get("needs") or {}
        fields = {
            **identify(fault),
            "witness": None,
            **declared,
            "targets": tuple(map(_target, targets)),
            "site": Site.parse(site) if site else None,
            "needs": {**getattr(fault, "__globals__", {}).get("NEEDS", {}), **needs},
        }
        made = Mutant(**fields)
        _require_declared(made)
        return made

    return make


def identify(fault: Callable[..., Any]) -> dict[str, Any]:
    """Returns the operator, name, description and function of a mutant, as fields of Mutant. Raises
    ValueError for a function without a docstring."""
    description = inspect.getdoc(fault)
    if not description:
        raise ValueError(f"the mutant {fault.__name__} needs a docstring that describes the fault")
    return {
        "operator": fault.__module__.rpartition(".")[2],
        "name": fault.__name__,
        "description": " ".join(description.split()),
        "fault": fault,
    }


def _require_declared(mutant: Mutant) -> None:
    """Raises ValueError if a mutant of the built-in decoder lacks a witness, a site or a law."""
    scored = not mutant.placebo and mutant.equivalent is None
    has_site = mutant.site is not None or mutant.law not in LOCATED
    if scored and not (has_site and mutant.witness is not None):
        raise ValueError(f"the mutant {mutant.name} needs a site and a witness")
    if mutant.law not in (*LAWS, VACUITY):
        raise ValueError(f"the mutant {mutant.name} declares an unknown law {mutant.law!r}")


def _target(target: str) -> str:
    """Returns the `module:attribute` that `target` abbreviates."""
    if ":" not in target:
        return f"{CACHED}:{target}"
    return f"{ZOO}{target}" if target.startswith(".") else target


def steps(*schedule: Entry, rows: int = 1, given: tuple[str, ...] = (), **config: Any) -> Case:
    """Returns a witness: `rows` rows of the tokens 1, 2, 3, ..., each continuing the row before,
    fed by `schedule` in float64. Where there is padding, calls get a mask."""
    padded = any(isinstance(entry, Padded) for entry in schedule)
    columns = sum(columns_of(entry) or 0 for entry in schedule)
    tokens = [tuple(range(1 + row * columns, 1 + (row + 1) * columns)) for row in range(rows)]
    given = tuple(sorted({*given, "mask"})) if padded else given
    return Case(tuple(tokens), schedule, dtype="float64", config=config, given=given)
