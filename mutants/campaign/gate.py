"""Gates: conditions on a score that decide the exit code in place of "all mutants are killed"."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.errors import UsageError
from mutants.campaign.result import NOT_KILLED, Score, read_report
from mutants.mutant import STATES

EXIT_CODES = {"killed": 0, "survived": 1, "inconclusive": 3}
LOST = ("loud", "crashed", "invalid", "inapplicable")
"""States outside the score. A mutant that was killed and is in one of them now is a lost kill."""
SHOWN = 10


@dataclass(frozen=True)
class Baseline:
    """A former report: the state of each mutant, by id."""

    path: Path
    states: dict[str, str]


@dataclass(frozen=True)
class Gate:
    """The conditions: at least `fail_under` percent, and nothing worse than in `baseline`. If both
    are None, all mutants must be killed."""

    fail_under: float | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class Changes:
    """The ids of mutants whose state changed since the baseline.

    `survivors` survive now (or are unreached or timed out) and were killed or absent. `lost` were
    killed and are loud, crashed, invalid or inapplicable now. `improved` are killed now and were
    not. `vanished` are absent now.
    """

    survivors: tuple[str, ...]
    lost: tuple[str, ...]
    improved: tuple[str, ...]
    vanished: tuple[str, ...]

    @property
    def worse(self) -> bool:
        return bool(self.survivors or self.lost)


@dataclass(frozen=True)
class BaselineDiff:
    """The changes since a baseline as lines, the worse ones first, and whether any is worse."""

    lines: tuple[str, ...]
    worse: bool


def read_gate(
    fail_under: float | None, baseline: Path | None, subject: str, written: Iterable[Path] = ()
) -> Gate:
    """Returns the gate of a score of `subject`, whose reports go to the files `written`.

    Raises UsageError if `baseline` cannot be read, or if a report would overwrite it: the next run
    would then compare with the failure of this one, and pass.
    """
    if baseline is None:
        return Gate(fail_under)
    if os.path.realpath(baseline) in map(os.path.realpath, written):
        raise UsageError(f"--baseline {baseline} would be overwritten: write to another file")
    return Gate(fail_under, read_baseline(baseline, subject))


def read_baseline(path: Path, subject: str) -> Baseline:
    """Returns the former report on `subject` at `path`.

    Raises UsageError for a file that is not a report, has no score, or is about another subject.
    """
    data = read_report(path, f"--baseline {path}")
    if data.get("subject") != subject:
        raise UsageError(f"--baseline {path} is about {data.get('subject')!r}, not {subject!r}")
    if data.get("score") is None:
        raise UsageError(f"--baseline {path} has no score: name a report with a score")
    mutants = data.get("mutants")
    if not isinstance(mutants, list) or not all(map(_is_result, mutants)):
        raise UsageError(f"--baseline {path} is broken: each mutant should have an id and a state")
    return Baseline(path, {each["id"]: each["state"] for each in mutants})


def find_changes(baseline: Baseline, score: Score) -> Changes:
    """Returns the mutants whose state changed since `baseline`."""
    now = {result.id: result.state for result in score.results}
    before = baseline.states

    def found(
        wanted: Iterable[str], *, was_killed: bool, also_new: bool = False
    ) -> tuple[str, ...]:
        states = tuple(wanted)
        return tuple(
            name
            for name, state in now.items()
            if state in states
            and ((before[name] == "killed") == was_killed if name in before else also_new)
        )

    return Changes(
        survivors=found(NOT_KILLED, was_killed=True, also_new=True),
        lost=found(LOST, was_killed=True),
        improved=found(("killed",), was_killed=False),
        vanished=tuple(name for name in before if name not in now),
    )


def exit_code(gate: Gate, score: Score) -> int:
    """Returns 3 without a score, else 0 if the conditions of the gate hold and 1 if not. Without a
    condition, all mutants must be killed."""
    if score.percent is None:
        return EXIT_CODES["inconclusive"]
    if gate == Gate():
        return EXIT_CODES[score.verdict]
    below = gate.fail_under is not None and score.percent < gate.fail_under
    worse = gate.baseline is not None and find_changes(gate.baseline, score).worse
    return int(below or worse)


def compare_with_baseline(gate: Gate, score: Score) -> BaselineDiff | None:
    """Returns the changes since the baseline of `gate`; None without a baseline or a score."""
    if gate.baseline is None or score.percent is None:
        return None
    changed = find_changes(gate.baseline, score)
    return BaselineDiff(tuple(_lines(gate.baseline, score, changed)), changed.worse)


def _lines(baseline: Baseline, score: Score, changed: Changes) -> Iterator[str]:
    path, before = baseline.path, baseline.states
    states = {result.id: result.state.replace("_", " ") for result in score.results}
    for name in changed.survivors:
        then = "killed" if name in before else "absent"
        yield f"NEW SURVIVOR {name}: {states[name]}, {then} in {path}"
    for name in changed.lost:
        yield f"KILL LOST {name}: {states[name]}, killed in {path}"
    if changed.improved:
        yield f"killed now but not in {path}: {_join(changed.improved)}"
    if changed.vanished:
        yield f"in {path} but not run now: {_join(changed.vanished)}"
    if not changed.worse:
        yield f"no new survivor since {path}"


def _join(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _is_result(each: Any) -> bool:
    return (
        isinstance(each, dict) and isinstance(each.get("id"), str) and each.get("state") in STATES
    )
