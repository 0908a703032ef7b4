"""Scores that the tests of reports make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvfuzz.case.case import Case
from mutants.campaign.result import Result, Score, count_states
from mutants.library.registry import library
from mutants.mutant import STATES


def made(results: list[Result], **changes: Any) -> Score:
    """A score of `results` on ten cases, that says of itself what they come to."""
    counts = count_states(results)
    decided = sum(counts[state] for state in ("killed", "survived", "unreached", "timed_out"))
    score = Score(
        verdict="killed" if counts["killed"] == decided else "survived",
        percent=100 * counts["killed"] / decided if decided else None,
        subject="zoo",
        seed=7,
        cases=tuple(Case((tuple(range(n + 2)),), (n + 1, 1), seed=n) for n in range(10)),
        results=tuple(results),
        placebos=(Result("placebo.passes_through", "placebo", "survived", ran=10, reached=44),),
        counts=counts,
    )
    return replace(score, **changes)


def result(mutant_id: str, state: str = "killed", **fields: Any) -> Result:
    """What became of a mutant of the library, or of one that is not in it."""
    known = library().get(mutant_id)
    fields.setdefault("declared_site", str(known.site) if known and known.site else None)
    if state == "killed":
        fields = {"killed_by": 0, "kills": (0,), "laws": ("agreement",), "excess": 20.0, **fields}
    return Result(mutant_id, mutant_id.partition(".")[0], state, **{"ran": 10, **fields})


def one_of_each_state() -> Score:
    """A score with a mutant in every state."""
    ids = [mutant_id for mutant_id, known in library().items() if not known.is_control]
    results = [
        result(mutant_id, state, reason=f"because of {state}" if state != "killed" else None)
        for mutant_id, state in zip(ids, STATES, strict=False)
    ]
    return made(results)


def all_survived(count: int, **fields: Any) -> Score:
    """A score of the first `count` mutants of the library, none of them killed."""
    ids = [mutant_id for mutant_id, known in library().items() if not known.is_control]
    return made([result(mutant_id, "survived", **fields) for mutant_id in ids[:count]])


def no_score(why: str) -> Score:
    """What a campaign comes to whose baseline failed."""
    return made([], verdict="inconclusive", percent=None, reason=why, placebos=())
