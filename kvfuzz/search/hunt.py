"""The hunt: draw cases until one diverges, shrink it, say where it went wrong, and keep it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kvfuzz.case.counterexample import Counterexample, counterexample
from kvfuzz.case.features import ELEMENTS, PADDED
from kvfuzz.case.files import name_in_folder
from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.oracle.laws import COMPANIONS, LAWS
from kvfuzz.search.explain import Explanation, explain
from kvfuzz.search.known_divergences import Expectation, idle
from kvfuzz.search.pool import run_rounds_in_processes
from kvfuzz.search.rounds import Failure, Plan, Tally, fresh_seed, run_rounds, shard_seed
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.protocol import Factory

EXAMPLES = 200


@dataclass(frozen=True)
class Hunt:
    """`verdict` is agreed, diverged, or inconclusive when no case that read its cache agreed.
    `seed` gives the same cases again, without a shard; `shard` is `K/N of seed S` where it was
    derived from S.

    `rows` counts compared positions and `weak_rows` those that rounding hides; the other counts are
    of `cases`: `read` agreed and read their cache, and those that are `discarded`, `weak` or
    `vacuous`, for the `reasons` given, were drawn again. `prefixwise` counts the cases whose
    uncached logits depended on later tokens or on the length. `worst_excess` is the largest
    |difference| / allowed, `bases` where the allowed came from, and `calibration` the file of the
    calibration in force.
    """

    verdict: str
    subject: str
    seed: int
    seconds: float
    cases: int
    rows: int
    weak_rows: int
    discarded: int
    weak: int
    vacuous: int
    read: int
    prefixwise: int
    worst_excess: float
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Mapping[str, int] = field(default_factory=dict)
    expected: Mapping[int, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    offers: frozenset[str] = frozenset()
    laws: tuple[str, ...] = COMPANIONS
    failure: Failure | None = None
    shard: str | None = None
    calibration: str | None = None
    explanation: Explanation | None = None
    counterexample: Counterexample | None = None
    path: Path | None = None

    def not_exercised(self) -> dict[str, str]:
        """What no case that agreed had, and why: silence about it is no proof."""
        lacking = {word: offer for offer, words in NEEDED.items() for word in words}
        return {
            word: "not asked for"
            if word in set(LAWS[1:]) - set(self.laws)
            else "not offered"
            if lacking.get(word) is not None and lacking[word] not in self.offers
            else "not drawn"
            for word in EXERCISES
            if not self.exercised.get(word)
        }

    def to_json(self) -> dict[str, Any]:
        plain = "verdict subject seed shard calibration"
        found = self.counterexample.to_json() if self.counterexample else None
        paths = self.explanation.paths if self.explanation else None
        return {
            **{name: getattr(self, name) for name in (*plain.split(), *COUNTS)},
            "exercised": {word: self.exercised.get(word, 0) for word in EXERCISES},
            "not_exercised": self.not_exercised(),
            "expected": {str(number + 1): count for number, count in sorted(self.expected.items())},
            "warnings": list(self.warnings),
            "seconds": round(self.seconds, 3),
            "paths": paths.sentence if paths else None,
            "agreeing": [list(group) for group in paths.groups] if paths else None,
            "counterexample": str(self.path) if self.path else None,
            "repeatable": self.explanation.repeatable if self.explanation else None,
            "notes": list(self.explanation.notes) if self.explanation else [],
            "found": found,
        }


_NO_COUNTS = ("failure", "exercised", "expected")
COUNTS = tuple(each.name for each in fields(Tally) if each.name not in _NO_COUNTS)
NEEDED = {
    "crop": ("crop",),
    "reorder": ("reorder", "select", "repeat"),
    "copy": ("fork",),
    "save": ("restore",),
    "reset": ("reset",),
    "mask": ("mask", *PADDED),
    "positions": ("positions",),
    "view": ("frame",),
    "generate": ("generation",),
}
"""What needs each offer of a subject."""
EXERCISES = (*ELEMENTS, *LAWS[1:])
"""What a hunt may exercise: elements of cases, and companion laws."""


def fuzz(
    subject: Any,
    *,
    examples: int | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    longest: int | None = None,
    options: Options | None = None,
    folder: Path | str | None = None,
    database: Path | str | None = None,
    laws: Sequence[str] = COMPANIONS,
    expected: Sequence[Expectation] = (),
    locating: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Hunt:
    """Hunt for a case on which `subject` (a subject, a factory of one, or a name) diverges.

    Runs `examples` cases (default EXAMPLES, or no limit when `seconds` is given) under `seed`
    (default fresh), in `workers` processes; `shard` (k, n) derives a seed of its own for shard k of
    n. Rows have up to `longest` tokens. A counterexample is written into `folder`, if given.
    `database` is where failing cases are kept between hunts; they are tried first, unless `seed` is
    given. `laws` are the companion laws (`kvfuzz.oracle.laws`) that cases are held to beside
    agreement, each in its turn; `expected` are divergences that are counted and end no hunt. With
    several workers, a script calls this under `if __name__ == "__main__"`, since each process
    imports it. What is found is located unless `locating` is false (`kvfuzz.locate`). `progress` is
    called with the number of cases done. Raises UsageError and InvalidSubject.
    """
    _check_limits(examples, seconds, workers, shard)
    _check_laws(laws)
    if workers > 1 and not isinstance(subject, str):
        raise UsageError("several workers need the name of a subject, which each can import")
    factory = as_factory(subject, options=options)
    options = options or Options()
    space = space_of(factory, longest)
    started = time.time()
    given = fresh_seed() if seed is None else seed
    plan = Plan(
        factory.name,
        options,
        space,
        shard_seed(given, shard),
        examples or (None if seconds else EXAMPLES),
        started + seconds if seconds else None,
        str(Path(database) / name_in_folder(factory.name)) if database and seed is None else None,
        tuple(law for law in laws if law != "agreement"),
        tuple(expected),
    )
    if workers == 1:
        tally = run_rounds(factory, plan, progress)
    else:
        tally = run_rounds_in_processes(plan, workers, progress)
    hunt = Hunt(
        "diverged" if tally.failure else "agreed" if tally.read else "inconclusive",
        factory.name,
        plan.seed,
        time.time() - started,
        **{each.name: getattr(tally, each.name) for each in fields(Tally)},
        offers=space.offers,
        laws=plan.laws,
        warnings=() if tally.failure else tuple(idle(expected, tally.expected, factory.name)),
        shard=f"{shard[0]}/{shard[1]} of seed {given}" if shard else None,
        calibration=options.calibration.path if options.calibration else None,
    )
    return _explained(hunt, factory, options.device, Path(folder) if folder else None, locating)


def _explained(
    hunt: Hunt, factory: Factory, device: str, folder: Path | None, locating: bool
) -> Hunt:
    """`hunt` with its failure explained, and written into `folder`."""
    failure = hunt.failure
    if failure is None:
        return hunt
    explanation = explain(factory, failure.case, failure.verdict, locating)
    if not failure.repeatable:
        explanation = replace(explanation, repeatable=False)
    located = explanation.location.summary() if explanation.location else None
    found = counterexample(factory.name, failure.case, failure.verdict, located, device)
    path = found.save(folder) if folder is not None else None
    return replace(hunt, explanation=explanation, counterexample=found, path=path)


def _check_laws(laws: Sequence[str]) -> None:
    for law in laws:
        if law not in LAWS:
            known = ", ".join(LAWS)
            raise UsageError(
                f"there is no law {law!r}{did_you_mean(law, LAWS)}: choose from {known}"
            )


def _check_limits(
    examples: int | None,
    seconds: float | None,
    workers: int,
    shard: tuple[int, int] | None,
) -> None:
    if examples is not None and examples < 1:
        raise UsageError(f"examples should be at least 1, got {examples}")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"the time limit should be above 0 seconds, got {seconds}")
    if workers < 1:
        raise UsageError(f"the number of workers should be at least 1, got {workers}")
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise UsageError(f"shard {shard[0]}/{shard[1]} should be K/N with 1 <= K <= N")
