"""Put the reports of all shards of a campaign together into the one of the whole."""

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
from kvfuzz.case.files import read_json
from kvfuzz.errors import Inconclusive, InvalidCase, UsageError, one_line
from mutants.campaign.campaign import MACHINE, differing
from mutants.campaign.result import KIND, SCHEMA, Result, Score
from mutants.campaign.score import conclude
from mutants.mutant import STATES

_FIELDS = tuple(field.name for field in fields(Result))
_INFINITE = {"inf", "-inf", "nan"}


def merge(paths: Sequence[Path]) -> Score:
    """The score of the campaign whose shards have their reports at `paths`, in any order.

    Raises UsageError for a file that is no such report, for reports of different campaigns and for
    a shard that is there twice, and Inconclusive for a set that is not complete, with the names of
    what is missing. A shard that is void makes the whole inconclusive.
    """
    twice = next((path for n, path in enumerate(paths) if _is_among(path, paths[:n])), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice")
    reports = {path: read_score(path) for path in paths}
    for path, score in reports.items():
        if score.shard is None:
            raise UsageError(f"{path} is the report of a whole campaign: there is nothing to merge")
    _same_campaign(reports)
    parts = _by_shard(reports)
    for path, score in parts:
        _require_complete(path, score)
    return _merged([score for _, score in parts])


def _is_among(path: Path, others: Sequence[Path]) -> bool:
    return os.path.realpath(path) in map(os.path.realpath, others)


def read_score(path: Path) -> Score:
    """The score in the report at `path`, as `kvfuzz score --json` writes it. Raises UsageError, in
    one line that names the file."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'{path} is no report of kvfuzz score --json: it has no "kind": "{KIND}"')
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{path} has schema {data.get('schema')!r}, this kvfuzz reads {SCHEMA}")
    try:
        return _score_of(data)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidCase) as error:
        raise UsageError(f"{path} is no report of this kvfuzz: {one_line(error)}") from None


def _score_of(data: Mapping[str, Any]) -> Score:
    shard = tuple(map(int, data["shard"].split("/"))) if data["shard"] else None
    results, placebos, canaries = (
        tuple(map(_result_of, data[name])) for name in ("mutants", "placebos", "canaries")
    )
    cases = tuple(map(Case.from_json, data["cases"]))
    for result in results:
        if not {*result.kills, *_first(result)} <= {*range(len(cases))}:
            raise ValueError(f"{result.id} is killed by a case that is not there")
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
    """The case that killed it first, if any did."""
    return () if result.killed_by is None else (result.killed_by,)


def _result_of(data: Mapping[str, Any]) -> Result:
    """A result as the report has it: the witness is the counterexample, not the path of its
    file, and numbers that are not finite are words."""
    told = {name: data[name] for name in _FIELDS if name in data}
    if told["state"] not in STATES:
        raise ValueError(f"{told['id']} has the state {told['state']!r}, which there is not")
    if Path(told["id"]).name != told["id"]:
        raise ValueError(f"{told['id']!r} is no mutant's id")
    told["witness"] = data["counterexample"]
    told["excess"] = float(data["excess"])
    told["map"] = [
        {name: float(v) if v in _INFINITE else v for name, v in cell.items()}
        for cell in data["map"]
    ]
    return Result.from_json(told)


def _same_campaign(reports: Mapping[Path, Score]) -> None:
    """Raises UsageError if two of `reports` are of different campaigns, with what differs."""
    (first, score), *others = reports.items()
    for path, other in others:
        names = differing(score.identity, other.identity, but=MACHINE)
        if names:
            one, two = score.identity.get(names[0]), other.identity.get(names[0])
            raise UsageError(
                f"{first} and {path} are of different campaigns: {names[0]} is {one!r} and {two!r}"
            )


def _by_shard(reports: Mapping[Path, Score]) -> list[tuple[Path, Score]]:
    """`reports` in the order of their shards. Raises UsageError if they are not parts of one
    division or one is there twice, and Inconclusive if one is missing."""
    found: dict[int, Path] = {}
    numbers = {score.shard[1] for score in reports.values() if score.shard}
    if len(numbers) > 1:
        told = " and ".join(map(str, sorted(numbers)))
        raise UsageError(f"these are shards of divisions into {told} parts: give those of one")
    (number,) = numbers
    for path, score in reports.items():
        assert score.shard is not None
        if score.shard[0] in found:
            both = f"{found[score.shard[0]]} and {path}"
            raise UsageError(f"shard {score.shard[0]}/{number} is there twice: {both}")
        found[score.shard[0]] = path
    missing = [f"{k}/{number}" for k in range(1, number + 1) if k not in found]
    if missing:
        raise Inconclusive(f"there is no score without all shards: {', '.join(missing)} missing")
    return [(found[k], reports[found[k]]) for k in sorted(found)]


def _require_complete(path: Path, score: Score) -> None:
    """Raises Inconclusive for a shard that is not void and lacks a mutant, or those that watch over
    it, and UsageError for one with a mutant that is not its own, or twice."""
    assert score.shard is not None
    first, step = score.shard[0] - 1, score.shard[1]
    missing = Counter(score.listed[first::step])
    missing.subtract(result.id for result in score.results)
    added = sorted(name for name, count in missing.items() if count < 0)
    if added:
        raise UsageError(f"{path} has {', '.join(added)} once too often: make that shard again")
    lacking = sorted(name for name, count in missing.items() if count > 0)
    watched = [name for name in ("canaries", "placebos") if not getattr(score, name)]
    lacking += [f"its {name}" for name in watched]
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
