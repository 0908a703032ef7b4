"""Compares four paths of a decoder on a case that diverged: any of them can be the wrong one.

The four are: uncached, one run for each prefix; uncached, in one run; cached, in one call with all
tokens of a row; cached, by the steps of the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.localize.location import Suspect
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.reference import prefixwise_logits, tolerance_for
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached

PREFIXES = "uncached, prefix by prefix"
ONE_RUN = "uncached, in one run"
ONE_CALL = "cached, in one call"
STEPS = "cached, step by step"
UNCACHED, CACHED = (PREFIXES, ONE_RUN), (ONE_CALL, STEPS)


@dataclass(frozen=True)
class PathGroups:
    """The `groups` of paths that agree among themselves, the largest first, and a `sentence` that
    says what to suspect."""

    groups: tuple[tuple[str, ...], ...]
    sentence: str

    @property
    def prefixes_agree(self) -> bool:
        """Whether one uncached run gives the same logits for each prefix as a run over the
        prefix."""
        return any(set(UNCACHED) <= set(group) for group in self.groups)


def compare_paths(subject: Subject, case: Case) -> PathGroups | None:
    """Groups the paths by agreement on `case`; None if one of them raised."""
    found = layout(case)
    try:
        whole = run_uncached(subject, found.sequences)
        each = prefixwise_logits(subject, case, "subject")
        if isinstance(each, Exception):
            return None
        at_once = run_cached(
            subject,
            replace(case, tokens=found.sequences, schedule=(len(found.sequences[0]),), given=()),
        )
        stepwise = run_cached(subject, case)
    except (CachedPathRaised, Refused):
        return None
    tolerance = tolerance_for(subject, case, whole, each)
    logits = {
        PREFIXES: found.table(each),
        ONE_RUN: found.table(whole),
        ONE_CALL: found.table(at_once),
        STEPS: stepwise,
    }
    fed = found.fed.to(whole.device)
    groups = _groups(logits, tolerance.at(found.table), fed)
    return PathGroups(groups, _sentence(groups, single=len(case.schedule) == 1))


def find_suspect(paths: PathGroups | None) -> tuple[Suspect, str | None]:
    """Returns the side to suspect, the one outside the largest group of paths, and a note on it."""
    if paths is None or len(paths.groups) < 2:
        return "unknown", None
    first, second = paths.groups[:2]
    if len(first) == len(second):
        return "unknown", (
            "the cached paths agree with each other, and so do the uncached ones: either side may "
            "be the wrong one"
            if set(first) in (set(CACHED), set(UNCACHED))
            else None
        )
    if STEPS not in first:
        return "cached", None
    if set(UNCACHED) <= set(first):
        return "cached", None
    return "uncached", "only the uncached path disagrees: it was compared with the cached one"


def _groups(
    logits: Mapping[str, Tensor], tolerance: Tolerance, fed: Tensor
) -> tuple[tuple[str, ...], ...]:
    """Groups the names in `logits` by agreement with the first of each group, largest group
    first."""
    groups: list[list[str]] = []
    for name, values in logits.items():
        for group in groups:
            if not bool(compare(values, logits[group[0]], tolerance, fed).diverges.any()):
                group.append(name)
                break
        else:
            groups.append([name])
    return tuple(tuple(group) for group in sorted(groups, key=lambda group: -len(group)))


def _sentence(groups: tuple[tuple[str, ...], ...], single: bool) -> str:
    together = {name: number for number, group in enumerate(groups) for name in group}
    alone = next((name for group in groups for name in group if len(group) == 1), None)
    if len(groups) == 1:
        return "all four paths agree on a fresh subject: suspect state that outlives a call"
    if len(groups) == 2 and together[PREFIXES] == together[ONE_RUN]:
        if together[ONE_CALL] == together[STEPS]:
            return (
                "the two cached paths agree with each other and the two uncached ones: suspect "
                "what both cached paths share, or the uncached path"
                if not single
                else "the two uncached paths agree with each other: suspect the call on the cache"
            )
        if alone == STEPS:
            return "cached in one call agrees with uncached: suspect what the later steps do"
        if alone == ONE_CALL:
            return (
                "only cached in one call disagrees: suspect a call of several tokens on an empty "
                "cache"
            )
    if alone == ONE_RUN and len(groups) == 2:
        return (
            "only the uncached run over all tokens disagrees: its logits for a prefix depend on "
            "later tokens, or on the length"
        )
    if alone == PREFIXES and len(groups) == 2:
        return (
            "only the uncached runs of each prefix disagree: the uncached path depends on the "
            "length, and both cached paths agree with the longer run"
        )
    if len(groups) == 2:
        first, second = (" and ".join(f"({name})" for name in group) for group in groups)
        return f"{first} agree, and {second} agree: suspect what depends on the length"
    listed = "; ".join(" = ".join(group) for group in groups)
    return f"the paths disagree ({listed})"
