"""Merges the reports of all shards of a campaign into one."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.case.environment import environment_of
from kvfuzz.errors import Inconclusive, InvalidCase, UsageError, one_line
from mutants.campaign.campaign import MACHINE, different_names
from mutants.campaign.result import Result, Score, conclude, read_report
from mutants.mutant import STATES

_FIELDS = tuple(field.name for field in fields(Result))
_INFINITE = {"inf", "-inf", "nan"}


def merge(paths: Sequence[Path]) -> Score:
    """Returns the score of the campaign whose shards have their reports at `paths`, in any order.

    Raises UsageError for a file that is not such a report, for reports of different campaigns and
    for a repeated shard. Raises Inconclusive, with the missing names, for an incomplete set. A
    shard without a score makes the whole inconclusive.
    """
    twice = next((path for n, path in enumerate(paths) if _is_among(path, paths[:n])), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice")
    reports = {path: read_score(path) for path in paths}
    for path, score in reports.items():
        if score.shard is None:
            raise UsageError(f"{path} is the report of a whole campaign, not of a shard")
    _same_campaign(reports)
    parts = _by_shard(reports)
    for path, score in parts:
        _require_complete(path, score)
    return _merged([score for _, score in parts])


def _is_among(path: Path, others: Sequence[Path]) -> bool:
    return os.path.realpath(path) in map(os.path.realpath, others)


def read_score(path: Path) -> Score:
    """Returns the score in the report at `path`. Raises UsageError, in one line that names the
    file."""
    data = read_report(path)
    try:
        return _score_of(data)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidCase) as error:
        raise UsageError(f"{path} is not a valid report: {one_line(error)}") from None


def _score_of(data: Mapping[str, Any]) -> Score:
    shard = tuple(map(int, data["shard"].split("/"))) if data["shard"] else None
    results, placebos, canaries = (
        tuple(map(_result_of, data[name])) for name in ("mutants", "placebos", "canaries")
    )
    cases = tuple(map(Case.from_json, data["cases"]))
    for result in results:
        if not {*result.kills, *_first(result)} <= {*range(len(cases))}:
            raise ValueError(f"{result.id} is killed by a case that is missing")
    return Score(
        verdict=str(data["verdict"]),
        percent=data["score"],
        subject=str(data["subject"]),
        seed=int(data["seed"]),
        cases=cases,
        results=results,
        placebos=placebos,
        canaries=canaries,
        matrix=bool(data["matrix"]),
        reason=data["reason"],
        seconds=float(data["seconds"]),
        counts=dict(data["counts"]),
        environment={name: data[name] for name in (*environment_of("cpu"), "workers")},
        command=str(data["command"]),
        calibration=data["calibration"],
        identity=dict(data["identity"]),
        listed=tuple(data["listed"]),
        shard=(shard[0], shard[1]) if shard else None,
    )


def _first(result: Result) -> tuple[int, ...]:
    """Returns the case that killed it first, if any did."""
    return () if result.killed_by is None else (result.killed_by,)


def _result_of(data: Mapping[str, Any]) -> Result:
    """Reads a result of a report, where `witness` is a path, `counterexample` the witness, and
    infinite numbers are strings."""
    values = {name: data[name] for name in _FIELDS if name in data}
    if values["state"] not in STATES:
        raise ValueError(f"{values['id']} has the unknown state {values['state']!r}")
    if Path(values["id"]).name != values["id"]:
        raise ValueError(f"{values['id']!r} is not a mutant id")
    values["witness"] = data["counterexample"]
    values["excess"] = float(data["excess"])
    values["map"] = [
        {name: float(v) if v in _INFINITE else v for name, v in cell.items()}
        for cell in data["map"]
    ]
    return Result.from_json(values)


def _same_campaign(reports: Mapping[Path, Score]) -> None:
    """Raises UsageError, with what differs, if two of `reports` are of different campaigns."""
    (first, score), *others = reports.items()
    for path, other in others:
        names = different_names(score.identity, other.identity, but=MACHINE)
        if names:
            one, two = score.identity.get(names[0]), other.identity.get(names[0])
            raise UsageError(
                f"{first} and {path} are of different campaigns: {names[0]} is {one!r} and {two!r}"
            )


def _by_shard(reports: Mapping[Path, Score]) -> list[tuple[Path, Score]]:
    """Returns `reports` in the order of their shards. Raises UsageError if they are not shards of
    one division or one is repeated, and Inconclusive if one is missing."""
    found: dict[int, Path] = {}
    numbers = {score.shard[1] for score in reports.values() if score.shard}
    if len(numbers) > 1:
        parts = " and ".join(map(str, sorted(numbers)))
        raise UsageError(f"these are shards of campaigns in {parts} parts: give those of one")
    (number,) = numbers
    for path, score in reports.items():
        assert score.shard is not None
        if score.shard[0] in found:
            both = f"{found[score.shard[0]]} and {path}"
            raise UsageError(f"shard {score.shard[0]}/{number} is given twice: {both}")
        found[score.shard[0]] = path
    missing = [f"{k}/{number}" for k in range(1, number + 1) if k not in found]
    if missing:
        raise Inconclusive(f"no score without all shards: {', '.join(missing)} missing")
    return [(found[k], reports[found[k]]) for k in sorted(found)]


def _require_complete(path: Path, score: Score) -> None:
    """Raises Inconclusive for a shard that lacks a mutant or the controls, unless it has no score
    anyway, and UsageError for a shard with a repeated mutant or one of another shard."""
    assert score.shard is not None
    first, step = score.shard[0] - 1, score.shard[1]
    missing = Counter(score.listed[first::step])
    missing.subtract(result.id for result in score.results)
    added = sorted(name for name, count in missing.items() if count < 0)
    if added:
        raise UsageError(f"{path} contains {', '.join(added)} twice; rerun that shard")
    lacking = sorted(name for name, count in missing.items() if count > 0)
    controls = [name for name in ("canaries", "placebos") if not getattr(score, name)]
    lacking += [f"its {name}" for name in controls]
    if lacking and score.verdict != "inconclusive":
        raise Inconclusive(f"{path} lacks {', '.join(lacking)}")


def _merged(parts: Sequence[Score]) -> Score:
    results = [result for score in parts for result in score.results]
    void = next(
        (
            f"shard {score.shard[0]}/{score.shard[1]}: {score.reason}"
            for score in parts
            if score.shard and score.verdict == "inconclusive"
        ),
        None,
    )
    return replace(
        parts[0],
        **conclude(results, void),
        placebos=tuple(placebo for score in parts for placebo in score.placebos),
        canaries=tuple(canary for score in parts for canary in score.canaries),
        seconds=max(score.seconds for score in parts),
        command=re.sub(r" --shard \S+", "", parts[0].command),
        shard=None,
    )
