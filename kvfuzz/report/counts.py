"""Tells what a hunt compared and exercised, and what it leaves open."""

from __future__ import annotations

import math

from kvfuzz.report.words import count, times
from kvfuzz.search.hunt import EXERCISES, Hunt
from kvfuzz.subjects.protocol import NO_HANDLE, ONE_CACHE


def hunt_counts(hunt: Hunt) -> str:
    """Returns how much `hunt` compared, what its cases had, and what it leaves open, in lines."""
    shard = f" (shard {hunt.shard})" if hunt.shard else ""
    again = [
        f"{n} {word}" for word in ("discarded", "vacuous", "weak") if (n := getattr(hunt, word))
    ]
    redrawn = f" ({', '.join(again)}: drawn again)" if again else ""
    prefixwise = ""
    if hunt.prefixwise:
        prefixwise = (
            f", {hunt.prefixwise} judged prefix by prefix (the uncached path is not causal)"
        )
    hidden = f" and {hunt.weak_positions} hidden by rounding" if hunt.weak_positions else ""
    found = [
        f"{count(hunt.cases, 'case')}{redrawn}{prefixwise}",
        f"{count(hunt.positions, 'position')} compared{hidden}",
        f"largest difference {times(hunt.worst_excess)} the allowed",
        f"{hunt.seconds:.1f} s",
        f"seed {hunt.seed}{shard}",
    ]
    if not math.isfinite(hunt.worst_excess):
        del found[2]  # a path raised, or gave no number
    elif hunt.worst_excess == 0 and "least" in hunt.bases:
        found[2] = "no difference above the least allowed"
    lines = [f"  {', '.join(found)}", *_caveats(hunt)]
    if hunt.expected:
        lines.append(f"  expected: {sum(hunt.expected.values())} cases diverged as declared")
    lines += [*_rows(hunt), *_exercised(hunt), *_narrow(hunt)]
    lines += [f"  note: {text}" for text in hunt.remarks]
    lines += [f"  warning: {text}" for text in hunt.warnings]
    if hunt.calibration:
        lines.append(f"  calibration: {hunt.calibration}")
    return "\n".join(lines)


def _caveats(hunt: Hunt) -> list[str]:
    """Returns what the tolerance of this subject, and its kind of cache, leave open."""
    lines = []
    if "constant" in hunt.bases:
        lines.append(
            "  tolerance: a constant, since the noise of this subject cannot be measured (it shows "
            "no weights, or does not run in float64); valid only for weights of ordinary scale"
        )
    if "own dtype" in hunt.bases:
        lines.append(
            "  without the float64 twin: noise is measured in the subject's own dtype, and a fault "
            "smaller than its rounding is not seen (docs/limits.md)"
        )
    lines += [f"  limits: {text}" for text in hunt.calls.texts()]
    if NO_HANDLE in hunt.offers:
        lines.append(
            "  caches: new_cache() hands out nothing, so the cache is in the model, which holds "
            f"one at a time; two at once were not drawn ({ONE_CACHE} = False draws them)"
        )
    return lines


def _ended_early(hunt: Hunt) -> bool:
    """Whether the hunt ended at a divergence, so that what it drew by then says little."""
    return bool(hunt.findings) and not hunt.keep_going


def _rows(hunt: Hunt) -> list[str]:
    """Returns how long the rows were that agreed, and which boundaries they crossed."""
    if _ended_early(hunt) or not hunt.longest:
        return []
    crossed = [one.text for one in hunt.boundaries if one.reason is None]
    lines = [f"  longest row {hunt.longest}{'; crossed ' if crossed else ''}{', '.join(crossed)}"]
    by_reason: dict[str, list[str]] = {}
    for one in hunt.boundaries:
        if one.reason is not None:
            by_reason.setdefault(one.reason, []).append(one.text)
    return lines + [f"  not crossed: {', '.join(n)}: {why}" for why, n in by_reason.items()]


def _exercised(hunt: Hunt) -> list[str]:
    """Returns which features the cases that agreed had, and which none had."""
    if _ended_early(hunt) or not hunt.exercised:
        return []
    features = ", ".join(
        f"{word} {hunt.exercised[word]}" for word in EXERCISES if word in hunt.exercised
    )
    lines = [f"  exercised: {features}"]
    by_reason: dict[str, list[str]] = {}
    for word, reason in hunt.not_exercised().items():
        by_reason.setdefault(reason, []).append(word)
    lines += [f"  {reason}: {', '.join(words)}" for reason, words in sorted(by_reason.items())]
    return lines


def _narrow(hunt: Hunt) -> list[str]:
    """Returns how many cases ran in the narrow dtypes, and why others could not be judged there."""
    lines = [f"  not judged in {text}" for text in hunt.not_narrow]
    if hunt.narrow:
        counts = ", ".join(f"{dtype} {number}" for dtype, number in hunt.narrow.items())
        lines.insert(0, f"  as users run it, nothing promoted: {counts}")
    return lines
