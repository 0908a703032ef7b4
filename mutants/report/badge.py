"""The badge of a score: JSON in the schema of https://shields.io/badges/endpoint-badge"""

from __future__ import annotations

from kvfuzz.case.files import to_json_text
from mutants.campaign.result import percent_text
from mutants.report.report import Report

COLORS = {"killed": "brightgreen", "survived": "red", "inconclusive": "lightgrey"}


def render(report: Report) -> str:
    """Returns the badge: green only if all mutants were killed, grey if there is no score."""
    score = report.score
    message = "no score" if score.percent is None else percent_text(score.percent, 1)
    badge = {
        "schemaVersion": 1,
        "label": "KV cache mutation score",
        "message": message,
        "color": COLORS[score.verdict],
        "isError": score.verdict != "killed",
    }
    return to_json_text(badge)
