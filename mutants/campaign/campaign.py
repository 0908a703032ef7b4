"""A campaign as plain values: what is scored and how, which any process can take over as JSON."""

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
"""What may differ between two shards of one campaign: nobody can choose where a shard runs."""


@dataclass(frozen=True)
class Limits:
    """What one mutant may take: forward calls, which are the same on every machine, for its cases
    and again for its shrinking; and, for what never comes back from a call, `seconds` and
    `megabytes` of memory."""

    calls: int = CALLS_PER_MUTANT
    seconds: float = SECONDS_PER_MUTANT
    megabytes: int = MEGABYTES_PER_MUTANT


@dataclass(frozen=True)
class Campaign:
    """What is scored and how.

    `cases` are those that a clean hunt by `plan` examines, but for what is expected to diverge.
    With `matrix` every case runs on every mutant; without, a mutant stops at its first kill.
    `shrink` tells whether kills are shrunk.
    """

    plan: Plan
    cases: tuple[Case, ...]
    matrix: bool = False
    shrink: bool = True
    limits: Limits = Limits()

    def to_json(self) -> dict[str, Any]:
        """As `read` takes it, in any process that has the subject."""
        options = self.plan.options
        calibration = options.calibration
        return {
            "subject": self.plan.subject,
            "device": options.device,
            "dtype": options.dtype,
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
    """Whether `case` is one of those that are expected to diverge without a fault."""
    verdict = Verdict("diverged")
    return any(one.is_about(plan.subject) and one.covers(case, verdict) for one in plan.expected)


def read(data: dict[str, Any]) -> tuple[Factory, Campaign]:
    """The campaign that `to_json` gave, and the factory of its subject."""
    calibration = calibration_of(*data["calibration"]) if data["calibration"] else None
    options = Options(data["device"], data["dtype"], data["config"], calibration)
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
    """What the table depends on, by name: two runs with the same identity give the same table,
    wherever they stop and however many processes they take.

    Cases, mutants and code are there as digests. Times are not: they are a fallback.
    """
    told = campaign.to_json()
    for name in ("seconds_per_mutant", "megabytes"):
        del told[name]
    return {
        **told,
        **environment_of(campaign.plan.options.device),
        **_versions(),
        # Without its path: two shards may have it in different folders.
        "calibration": _digest(told["calibration"][0]) if told["calibration"] else None,
        "cases": _digest(told["cases"]),
        "mutants": _digest([mutant.id for mutant in mutants]),
        "code": _code_digest(campaign.plan.subject),
    }


def digest_of(identity: dict[str, Any]) -> str:
    """Sixteen hex digits of an identity."""
    return _digest(identity)


def differing(one: dict[str, Any], other: dict[str, Any], but: Iterable[str] = ()) -> list[str]:
    """The names under which two identities hold different things, `but` for some."""
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
    """Of the source of the checker and of the library, of what other packages add to it, and of the
    subject's own file, where its name is that of one."""
    names = {"kvfuzz", "mutants", *(entry.value for entry in entry_points(group=GROUP))}
    names.add(subject.rpartition(":")[0])
    total = hashlib.sha256()
    for name in sorted(names):
        for path in _sources(name):
            total.update(f"{name} {path.name}".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _sources(name: str) -> list[Path]:
    """The Python files of the module or package called `name`, or the file of that path."""
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
