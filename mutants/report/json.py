"""The JSON report of a score: everything, as `score.schema.json` describes it."""

from __future__ import annotations

from kvfuzz.case.files import to_json_text
from mutants.report.report import Report


def render(report: Report) -> str:
    """Returns the score as JSON text."""
    return to_json_text(report.score.to_json(report.witnesses))
