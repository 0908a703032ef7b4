"""A score as the JSON of a badge, in the schema of shields.io's endpoint badge:
https://shields.io/badges/endpoint-badge"""

from __future__ import annotations

from typing import Any

from mutants.campaign.result import Score, percent_text

LABEL = "KV cache mutation score"
COLORS = {"killed": "brightgreen", "survived": "red", "inconclusive": "lightgrey"}


def badge(score: Score) -> dict[str, Any]:
    """Green where all mutants were killed, and only there; grey where there is no score."""
    message = "no score" if score.percent is None else percent_text(score.percent, 1)
    return {
        "schemaVersion": 1,
        "label": LABEL,
        "message": message,
        "color": COLORS[score.verdict],
        "isError": score.verdict != "killed",
    }
