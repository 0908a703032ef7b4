"""Gates: what a score has to come to, beside or instead of all mutants killed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.case.files import read_json
from kvfuzz.errors import UsageError
from mutants.campaign.result import KIND, NOT_KILLED, SCHEMA, Score
from mutants.mutant import STATES

EXIT_CODES = {"killed": 0, "survived": 1, "inconclusive": 3}
LOST = ("loud", "crashed", "invalid", "inapplicable")
"""States that hide a mutant from the score: one that was killed and is now in such a state is a
kill lost, though no survivor."""
SHOWN = 10


@dataclass(frozen=True)
class Baseline:
    """A former score: the state of each mutant, by id."""

    path: Path
    states: dict[str, str]


@dataclass(frozen=True)
class Gate:
    """What a score has to come to: at least `fail_under` percent, and nothing worse than in
    `baseline`; where both are None, all killed."""

    fail_under: float | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class Changes:
    """The ids of mutants that are otherwise than in the baseline.

    `survivors` are not killed now (survived, unreached or timed out), and were killed or not there;
    `lost` were killed and are now loud, crashed, invalid or inapplicable; `improved` are killed now
    and were not; `vanished` are not there now.
    """

    survivors: tuple[str, ...]
    lost: tuple[str, ...]
    improved: tuple[str, ...]
    vanished: tuple[str, ...]

    @property
    def worse(self) -> bool:
        return bool(self.survivors or self.lost)


@dataclass(frozen=True)
class Since:
    """What has changed since a baseline, one `line` for each: what is worse first, and whether
    there is any."""

    lines: tuple[str, ...]
    worse: bool


def read_gate(
    fail_under: float | None, baseline: Path | None, subject: str, written: Iterable[Path] = ()
) -> Gate:
    """The gate of a score of `subject`, whose reports go to the `written` files.

    Raises UsageError where the file `baseline` cannot be used (`read_baseline`), or is one of those
    written: a second run would be measured against the failure of the first, and pass.
    """
    if baseline is None:
        return Gate(fail_under)
    if os.path.realpath(baseline) in map(os.path.realpath, written):
        raise UsageError(f"--baseline {baseline} would be written over: write to another file")
    return Gate(fail_under, read_baseline(baseline, subject))


def read_baseline(path: Path, subject: str) -> Baseline:
    """The former report on `subject` at `path`, which `kvfuzz score --json` wrote.

    Raises UsageError, in one line, for a file that is none, that has no score, or is of another
    subject.
    """
    data = read_json(path, "--baseline")
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'--baseline {path} is no report of kvfuzz score --json: no "kind"')
    if data.get("schema") != SCHEMA:
        raise UsageError(f"--baseline {path} has schema {data.get('schema')!r}, not {SCHEMA}")
    if data.get("subject") != subject:
        raise UsageError(f"--baseline {path} is of {data.get('subject')!r}, not of {subject!r}")
    if data.get("score") is None:
        raise UsageError(f"--baseline {path} has no score: name a report that has one")
    mutants = data.get("mutants")
    if not isinstance(mutants, list) or not all(map(_is_result, mutants)):
        raise UsageError(f"--baseline {path} is broken: mutants should each have an id and a state")
    return Baseline(path, {each["id"]: each["state"] for each in mutants})


def changes(baseline: Baseline, score: Score) -> Changes:
    """What has changed since `baseline`."""
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
    """3 without a score. A gate alone decides between 0 and 1, and where both are set both have to
    hold; without any, each mutant has to be killed."""
    if score.percent is None:
        return EXIT_CODES["inconclusive"]
    if gate == Gate():
        return EXIT_CODES[score.verdict]
    below = gate.fail_under is not None and score.percent < gate.fail_under
    worse = gate.baseline is not None and changes(gate.baseline, score).worse
    return int(below or worse)


def since(gate: Gate, score: Score) -> Since | None:
    """What has changed since the baseline of `gate`, in words; None without one, or a score."""
    if gate.baseline is None or score.percent is None:
        return None
    changed = changes(gate.baseline, score)
    return Since(tuple(_told(gate.baseline, score, changed)), changed.worse)


def _told(baseline: Baseline, score: Score, changed: Changes) -> Iterator[str]:
    path, before = baseline.path, baseline.states
    states = {result.id: result.state.replace("_", " ") for result in score.results}
    for name in changed.survivors:
        then = "killed" if name in before else "not there"
        yield f"NEW SURVIVOR {name}: {states[name]}, {then} in {path}"
    for name in changed.lost:
        yield f"KILL LOST {name}: {states[name]}, killed in {path}"
    if changed.improved:
        yield f"killed now, and not in {path}: {_listed(changed.improved)}"
    if changed.vanished:
        yield f"in {path}, and not run now: {_listed(changed.vanished)}"
    if not changed.worse:
        yield f"no new survivor since {path}"


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _is_result(each: Any) -> bool:
    return (
        isinstance(each, dict) and isinstance(each.get("id"), str) and each.get("state") in STATES
    )
