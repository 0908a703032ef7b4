"""A campaign as plain values, which any process can read from JSON: what is scored, and how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.environment import environment_of
from kvfuzz.case.verdict import Verdict
from kvfuzz.search.known_divergences import Expectation
from kvfuzz.search.rounds import Plan
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.calibration import from_json as calibration_of
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory
from mutants.library.registry import GROUP
from mutants.mutant import Mutant

EXAMPLES = 250
SECONDS_PER_MUTANT = 60.0
CALLS_PER_MUTANT = 10_000
MEGABYTES_PER_MUTANT = 4096
LIBRARIES = ("transformers", "mlx", "mlx-lm", "transformer-lens")
MACHINE = ("platform", "backend")
"""The names of an identity that may differ between shards, which may run on other machines."""


@dataclass(frozen=True)
class Limits:
    """The limits of one mutant. Forward `calls` are the same on every machine; its cases have that
    many, and its shrinking again. `seconds` and `megabytes` (of memory) stop a call that never
    returns."""

    calls: int = CALLS_PER_MUTANT
    seconds: float = SECONDS_PER_MUTANT
    megabytes: int = MEGABYTES_PER_MUTANT


@dataclass(frozen=True)
class Campaign:
    """What is scored, and how.

    `cases` are those of a clean hunt by `plan`, without known divergences. With `matrix` every case
    runs on every mutant; otherwise a mutant stops at its first kill. `shrink` shrinks the kills.
    """

    plan: Plan
    cases: tuple[Case, ...]
    matrix: bool = False
    shrink: bool = False
    limits: Limits = Limits()

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON for `read_campaign`, in any process that has the subject."""
        options = self.plan.options
        calibration = options.calibration
        return {
            "subject": self.plan.subject,
            "device": options.device,
            "dtype": options.dtype,
            "twin": options.twin,
            "config": dict(options.config),
            "calibration": (calibration.to_json(), calibration.path) if calibration else None,
            "expected": [asdict(each) for each in self.plan.expected],
            "seed": self.plan.seed,
            "examples": self.plan.examples,
            "matrix": self.matrix,
            "shrink": self.shrink,
            "calls": self.limits.calls,
            "seconds_per_mutant": self.limits.seconds,
            "megabytes": self.limits.megabytes,
            "cases": [case.to_json() for case in self.cases],
        }


def is_expected(plan: Plan, case: Case) -> bool:
    """Returns whether `case` is a known divergence of the unmutated subject."""
    verdict = Verdict("diverged")
    return any(one.is_about(plan.subject) and one.covers(case, verdict) for one in plan.expected)


def read_campaign(data: dict[str, Any]) -> tuple[Factory, Campaign]:
    """Returns the campaign that `to_json` gave, and the factory of its subject."""
    calibration = calibration_of(*data["calibration"]) if data["calibration"] else None
    options = Options(
        data["device"], data["dtype"], data["config"], calibration, data.get("twin", True)
    )
    factory = load(data["subject"], options)
    expected = tuple(
        Expectation(**{**each, "elements": tuple(each["elements"])}) for each in data["expected"]
    )
    plan = Plan(
        data["subject"],
        options,
        space_of(factory),
        data["seed"],
        data["examples"],
        until=None,
        expected=expected,
    )
    limits = Limits(data["calls"], data["seconds_per_mutant"], data["megabytes"])
    cases = tuple(map(Case.from_json, data["cases"]))
    return factory, Campaign(plan, cases, data["matrix"], data["shrink"], limits)


def identity_of(campaign: Campaign, mutants: Sequence[Mutant]) -> dict[str, Any]:
    """Returns all that the table depends on, by name: two runs with the same identity give the same
    table, wherever they stop and however many processes they use.

    Cases, mutants and code are digests. Limits of time and memory are not part of it, because they
    only stop what never returns.
    """
    settings = campaign.to_json()
    for name in ("seconds_per_mutant", "megabytes"):
        del settings[name]
    return {
        **settings,
        **environment_of(campaign.plan.options.device),
        **_versions(),
        # Without its path: shards may keep it in different folders.
        "calibration": _digest(settings["calibration"][0]) if settings["calibration"] else None,
        "cases": _digest(settings["cases"]),
        "mutants": _digest([mutant.id for mutant in mutants]),
        "code": _code_digest(campaign.plan.subject),
    }


def digest_of(identity: dict[str, Any]) -> str:
    """Returns the digest of an identity, 16 hex digits."""
    return _digest(identity)


def different_names(
    one: dict[str, Any], other: dict[str, Any], but: Iterable[str] = ()
) -> list[str]:
    """Returns the names, except those in `but`, whose values differ between two identities."""
    names = sorted({*one, *other} - {*but})
    return [name for name in names if one.get(name) != other.get(name)]


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _code_digest(subject: str) -> str:
    """Returns the digest of the source of the checker, of all mutants, and of the subject if it is
    named by a file."""
    names = {"kvfuzz", "mutants", *(entry.value for entry in entry_points(group=GROUP))}
    names.add(subject.rpartition(":")[0])
    total = hashlib.sha256()
    for name in sorted(names):
        for path in _sources(name):
            total.update(f"{name} {path.name}".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _sources(name: str) -> list[Path]:
    """Returns the Python files of the module or package called `name`, or the file at that path."""
    if Path(name).is_file():
        return [Path(name)]
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None or not spec.has_location:
        return []
    if spec.submodule_search_locations:
        return sorted(
            path
            for folder in spec.submodule_search_locations
            for path in Path(folder).rglob("*.py")
        )
    return [Path(spec.origin)]
