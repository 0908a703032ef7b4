"""Compares four paths of a decoder on a case that diverged: any of them can be the wrong one.

The four are: uncached, one run for each prefix; uncached, in one run; cached, in one call with all
tokens of a row; cached, by the steps of the case.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import Layout, layout
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize.location import Suspect
from kvfuzz.oracle.compare import compare
from kvfuzz.oracle.reference import agree, prefixwise_logits, tested_prefix, tolerance_for
from kvfuzz.oracle.tolerance import Tolerance
from kvfuzz.subjects.call_limits import call_limits_of
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, compared, run_cached, run_uncached

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


@dataclass(frozen=True)
class PlainRuns:
    """The two runs of a case that its verdict compares: the `uncached` logits [sequences, time,
    vocab] of its sequences, those of the `cached` path (None if that raised), and the `seconds` of
    CPU time that both took."""

    uncached: Tensor
    cached: Tensor | None
    seconds: float


def run_both(subject: Subject, case: Case) -> PlainRuns:
    """Runs both paths of `subject` on `case`. Raises what the uncached path raises."""
    started, cached = time.process_time(), None
    uncached = run_uncached(subject, layout(case).sequences)
    with suppress(CachedPathRaised, Refused):
        cached = run_cached(subject, case)
    return PlainRuns(uncached, cached, time.process_time() - started)


def compare_paths(
    subject: Subject, case: Case, plain: PlainRuns | None = None
) -> PathGroups | None:
    """Groups the paths by agreement on `case`; None if one of them raised. `plain` are the runs of
    the case, if they are known."""
    found = layout(case)
    plain = plain or run_both(subject, case)
    if plain.cached is None:
        return None
    try:
        cached = _in_one_call(subject, case) | {STEPS: plain.cached}
        each, tolerance = _find_prefixes(subject, case, plain.uncached, cached)
    except KvfuzzError:
        raise
    except Exception:
        return None
    logits = {PREFIXES: found.table(each), ONE_RUN: found.table(plain.uncached), **cached}
    fed = _compared(subject, case).to(each.device)
    groups = _groups(logits, tolerance.at(found.table), fed)
    return PathGroups(groups, _sentence(groups, single=len(case.schedule) == 1))


def _in_one_call(subject: Subject, case: Case) -> dict[str, Tensor]:
    """Returns the logits [rows, columns, vocab] of the cached path in one call, by its name; empty
    for a subject that takes no such call, or returns only the last logits of it."""
    found, calls = layout(case), call_limits_of(subject)
    rows = found.sequences
    if calls.last_only or not calls.takes(len(rows[0]), filled=False):
        return {}
    whole = replace(case, tokens=rows, schedule=(len(rows[0]),), given=(), keep=None)
    return {ONE_CALL: found.table(run_cached(subject, whole))}


def _compared(subject: Subject, case: Case) -> Tensor:
    cells = compared(subject, case)
    return layout(case).fed if cells is None else cells


def _find_prefixes(
    subject: Subject, case: Case, whole: Tensor, cached: Mapping[str, Tensor]
) -> tuple[Tensor, Tolerance]:
    """Returns the logits of one uncached run over each prefix, and their tolerance.

    For a causal subject these are `whole`, the logits of one run over the rows. To run every prefix
    would cost more than everything else here, so a few are tested: the one that the reference tests
    too, and those that end where one of the `cached` paths first differs.
    """
    found = layout(case)
    alone = functools.cache(lambda stop: run_uncached(subject, found.prefix(stop)))

    def is_alike(stop: int, tolerance: Tolerance) -> bool:
        between = tolerance.between(0, stop)
        return not 0 < stop < whole.shape[1] or agree(alone(stop), whole[:, :stop], between)

    # A run over one token may take a branch of its own.
    stops = {1, tested_prefix(case, found)}
    # What agrees without noise agrees with it too, and measuring noise takes several runs.
    tolerance = tolerance_for(subject, case, whole, noise=False)
    alike = all(is_alike(stop, tolerance) for stop in stops)
    fed = _compared(subject, case).to(whole.device)
    if not alike or _first_differing(found, cached, whole, tolerance, fed):
        tolerance = tolerance_for(subject, case, whole)
        stops |= _first_differing(found, cached, whole, tolerance, fed)
    if all(is_alike(stop, tolerance) for stop in stops):
        return whole, tolerance
    each = prefixwise_logits(subject, case, "subject")
    if isinstance(each, Exception):
        raise each
    return each, tolerance_for(subject, case, whole, each)


def _first_differing(
    found: Layout,
    cached: Mapping[str, Tensor],
    whole: Tensor,
    tolerance: Tolerance,
    fed: Tensor,
) -> set[int]:
    """Returns the length of the prefix that ends where each of the `cached` paths first differs
    from `whole`, at the cells that are `fed`."""
    lengths = set()
    allowed = tolerance.at(found.table)
    for values in cached.values():
        diverges = compare(values, found.table(whole), allowed, fed).diverges.T
        if bool(diverges.any()):
            column, row = diverges.nonzero()[0].tolist()
            lengths.add(int(found.position[row, column]) + 1)
    return lengths


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
    if ONE_CALL not in together:
        return _sentence_without_one_call(groups, together)
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


def _sentence_without_one_call(
    groups: tuple[tuple[str, ...], ...], together: Mapping[str, int]
) -> str:
    """Says the same of the three paths of a subject that takes no call over all tokens."""
    if len(groups) == 1:
        return "all three paths agree on a fresh subject: suspect state that outlives a call"
    if together[PREFIXES] == together[ONE_RUN]:
        return "the two uncached paths agree with each other: suspect the calls on the cache"
    listed = "; ".join(" = ".join(group) for group in groups)
    return f"the paths disagree ({listed})"
