"""What the module of a report format gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mutants.campaign.gate import BaselineDiff
from mutants.campaign.result import Score


@dataclass(frozen=True)
class Report:
    """What a report shows: the score, the file of each witness by mutant id, and what changed since
    a baseline, if one was given."""

    score: Score
    witnesses: Mapping[str, Path] = field(default_factory=dict)
    changed: BaselineDiff | None = None
