"""Writes the table of the counterexamples that were collected; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvfuzz.case.schedule import schedule_text
from kvfuzz.report.words import given_text
from kvfuzz.search.collect import Collected


def collected_text(collected: Sequence[Collected]) -> str:
    """Returns a table of the counterexamples, one line each."""
    lines = ["files  program"]
    for one in collected:
        case = one.found.case
        given = given_text(case)
        where = f", first at {one.site}" if one.site else ""
        rows = f"{case.batch} {'row' if case.batch == 1 else 'rows'}"
        program = f"{schedule_text(case.schedule)}, {rows}{given}"
        lines.append(
            f"{len(one.files):5}  {one.found.subject}: {program}: {one.law}{where}: {one.path}"
        )
    return "\n".join(lines)
