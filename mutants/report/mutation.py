"""A score in the format that mutation testing viewers share: the mutation-testing-report-schema of
Stryker (npm package of that name), so that its viewers open it.

They count a timeout as detected. A mutant that timed out was not: it is told as survived.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvfuzz.case.features import family
from kvfuzz.case.schedule import schedule_text
from mutants.campaign.result import Result, Score
from mutants.library.registry import known
from mutants.report.places import Place, place_of
from mutants.report.words import headline, identity, outcome, words

SCHEMA_VERSION = "2"
THRESHOLDS = {"high": 100, "low": 80}
"""The percentages from which a viewer shows green, and from which yellow."""
STATUS = {
    "killed": "Killed",
    "survived": "Survived",
    "timed_out": "Survived",
    "unreached": "NoCoverage",
    "loud": "RuntimeError",
    "crashed": "RuntimeError",
    "invalid": "RuntimeError",
    "equivalent": "Ignored",
    "inapplicable": "Ignored",
}
CASES = "cases"
"""The one file of tests: each case is a test, whose id is its number."""


def mutation_report(score: Score) -> dict[str, Any]:
    """`score` as the schema has it: a file for each file of faults, with its source and mutants."""
    placed = {result.id: place_of(result.id) for result in score.results}
    in_file: defaultdict[str, list[Result]] = defaultdict(list)
    for result in score.results:
        in_file[placed[result.id].file].append(result)
    return {
        "schemaVersion": SCHEMA_VERSION,
        "thresholds": THRESHOLDS,
        "framework": {"name": "kvfuzz", "version": str(score.environment.get("kvfuzz", ""))},
        "config": {"verdict": headline(score), **dict(identity(score)), "command": score.command},
        "files": {
            file: {
                "language": "python",
                "source": placed[results[0].id].source,
                "mutants": [_mutant(each, placed[each.id]) for each in results],
            }
            for file, results in sorted(in_file.items())
        },
        "testFiles": {CASES: {"tests": _tests(score)}},
    }


def _mutant(result: Result, place: Place) -> dict[str, Any]:
    mutant = known(result.id)
    return {
        "id": result.id,
        "mutatorName": result.operator,
        "description": mutant.description if mutant else "no longer in the library",
        "location": {
            "start": {"line": place.start_line, "column": place.start_column},
            "end": {"line": place.stop_line, "column": place.stop_column},
        },
        "status": _status(result),
        "statusReason": _status_reason(result),
        "killedBy": [str(index) for index in result.kills] if result.state == "killed" else [],
        "testsCompleted": result.ran,
        "duration": round(1000 * result.seconds),
    }


def _status(result: Result) -> str:
    """A fault that could not even be put in is one that does not compile."""
    if result.state == "invalid" and not result.ran:
        return "CompileError"
    return STATUS[result.state]


def _status_reason(result: Result) -> str:
    """With the state where the status does not tell it."""
    told = result.state in ("killed", "survived")
    return outcome(result) if told else f"{words(result.state)}: {outcome(result)}"


def _tests(score: Score) -> list[dict[str, str]]:
    """The cases, which are what kills."""
    return [
        {"id": str(index), "name": f"case {index}: {family(case)}, {schedule_text(case.schedule)}"}
        for index, case in enumerate(score.cases)
    ]
