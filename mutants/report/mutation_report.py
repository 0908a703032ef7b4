"""The mutation-testing report of a score: the mutation-testing-report-schema of Stryker (an npm
package), which several viewers open.

Viewers count a timeout as detected. Here a mutant that timed out was not detected, so its status is
Survived.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvfuzz.case.features import family
from kvfuzz.case.files import to_json_text
from kvfuzz.case.schedule import schedule_text
from mutants.campaign.result import Result, Score
from mutants.library.registry import known
from mutants.report.places import Place, place_of
from mutants.report.report import Report
from mutants.report.words import describe_fault, describe_run, explain_state, headline, state_words

SCHEMA_VERSION = "2"
THRESHOLDS = {"high": 100, "low": 80}
"""The percentages from which a viewer shows green and yellow."""
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
"""The name of the one test file: each case is a test, and its number is the id."""


def render(report: Report) -> str:
    """Returns the score as JSON text in the schema."""
    return to_json_text(mutation_report(report.score))


def mutation_report(score: Score) -> dict[str, Any]:
    """Returns the score in the schema: one file for each file of faults, with its source and its
    mutants."""
    placed = {result.id: place_of(result.id) for result in score.results}
    in_file: defaultdict[str, list[Result]] = defaultdict(list)
    for result in score.results:
        in_file[placed[result.id].file].append(result)
    return {
        "schemaVersion": SCHEMA_VERSION,
        "thresholds": THRESHOLDS,
        "framework": {"name": "kvfuzz", "version": str(score.environment.get("kvfuzz", ""))},
        "config": {
            "verdict": headline(score),
            **dict(describe_run(score)),
            "command": score.command,
        },
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
    return {
        "id": result.id,
        "mutatorName": result.operator,
        "description": describe_fault(known(result.id)),
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
    """Returns the status. A fault that could not be injected did not compile."""
    if result.state == "invalid" and not result.ran:
        return "CompileError"
    return STATUS[result.state]


def _status_reason(result: Result) -> str:
    """Returns why, with the state if the status does not name it."""
    why = explain_state(result)
    return why if result.state in ("killed", "survived") else f"{state_words(result.state)}: {why}"


def _tests(score: Score) -> list[dict[str, str]]:
    """Returns the cases as tests."""
    return [
        {"id": str(index), "name": f"case {index}: {family(case)}, {schedule_text(case.schedule)}"}
        for index, case in enumerate(score.cases)
    ]
