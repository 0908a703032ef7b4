"""The hunt: draw cases until one diverges, shrink it, say where it went wrong, and keep it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvfuzz.counterexample import Counterexample, counterexample
from kvfuzz.errors import UsageError
from kvfuzz.explaining import Explanation, explain
from kvfuzz.loading import Options, as_factory
from kvfuzz.parallel import run_rounds_in_processes
from kvfuzz.rounds import Failure, Plan, fresh_seed, run_rounds, shard_seed
from kvfuzz.strategies import space_of
from kvfuzz.subject import Factory

EXAMPLES = 200


@dataclass(frozen=True)
class Hunt:
    """`verdict` is agreed, diverged, or inconclusive when nothing was compared. `seed` gives the
    same cases again, without a shard; `shard` is `K/N of seed S` where it was derived from S.
    `rows` counts compared positions; `worst_excess` is the largest |difference| / allowed;
    `prefixwise` counts the cases whose uncached logits depended on later tokens or on the length;
    `reasons` says why cases were discarded."""

    verdict: str
    subject: str
    seed: int
    cases: int
    rows: int
    discarded: int
    prefixwise: int
    worst_excess: float
    seconds: float
    shard: str | None = None
    reasons: tuple[str, ...] = ()
    failure: Failure | None = None
    explanation: Explanation | None = None
    counterexample: Counterexample | None = None
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        names = "verdict subject seed shard cases rows discarded reasons prefixwise worst_excess"
        found = self.counterexample.to_json() if self.counterexample else None
        return {
            **{name: getattr(self, name) for name in names.split()},
            "seconds": round(self.seconds, 3),
            "paths": self.explanation.paths if self.explanation else None,
            "counterexample": str(self.path) if self.path else None,
            "repeatable": self.explanation.repeatable if self.explanation else None,
            "notes": list(self.explanation.notes) if self.explanation else [],
            "found": found,
        }


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
    progress: Callable[[int], None] | None = None,
) -> Hunt:
    """Hunt for a case on which `subject` (a subject, a factory of one, or a name) diverges.

    Runs `examples` cases (default EXAMPLES, or no limit when `seconds` is given) under `seed`
    (default fresh), in `workers` processes; `shard` (k, n) derives a seed of its own for shard k
    of n. Rows have up to `longest` tokens. A counterexample is written into `folder`, if given.
    `database` is where failing cases are kept between hunts; they are tried first, unless `seed`
    is given. With several workers, a script calls this under `if __name__ == "__main__"`, since
    each process imports it. `progress` is called with the number of cases done. Raises UsageError
    and InvalidSubject.
    """
    _check_limits(examples, seconds, workers, shard)
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
        str(Path(database) / _folder_name(factory.name)) if database and seed is None else None,
    )
    if workers == 1:
        tally = run_rounds(factory, plan, progress)
    else:
        tally = run_rounds_in_processes(plan, workers, progress)
    hunt = Hunt(
        "diverged" if tally.failure else "agreed" if tally.rows else "inconclusive",
        factory.name,
        plan.seed,
        tally.cases,
        tally.rows,
        tally.discarded,
        tally.prefixwise,
        tally.worst_excess,
        time.time() - started,
        f"{shard[0]}/{shard[1]} of seed {given}" if shard else None,
        tally.reasons,
    )
    return _explained(
        hunt, factory, tally.failure, options.device, Path(folder) if folder else None
    )


def _explained(
    hunt: Hunt, factory: Factory, failure: Failure | None, device: str, folder: Path | None
) -> Hunt:
    """`hunt` with its failure explained, and written into `folder`."""
    if failure is None:
        return hunt
    explanation = explain(factory, failure.case, failure.verdict)
    if not failure.repeatable:
        explanation = replace(explanation, repeatable=False)
    located = explanation.located.to_json() if explanation.located else None
    found = counterexample(factory.name, failure.case, failure.verdict, located, device)
    path = found.save(folder) if folder is not None else None
    return replace(hunt, failure=failure, explanation=explanation, counterexample=found, path=path)


def _folder_name(subject: str) -> str:
    """A folder name for `subject`: what failed on one says nothing about another."""
    return hashlib.sha256(subject.encode()).hexdigest()[:8]


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
