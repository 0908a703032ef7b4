"""Names what a case exercises: its features, and the family of schedules that it belongs to."""

from __future__ import annotations

from kvfuzz.case.case import KEEP, Case
from kvfuzz.case.schedule import SIDES, Crop, Padded, Ragged, Tree

PLAIN = ("token by token", "prefill + decode", "chunks", "prefill only")
OPERATED = (
    "ragged",
    "tree",
    "crop",
    "rollback",
    "reorder",
    "select",
    "repeat",
    "fork",
    "restore",
    "reset",
    "new",
    "switch",
    "join",
)
PADDED = tuple(f"{side} padding" for side in SIDES)
FAMILIES = (*PLAIN, "given arguments", "padding", *OPERATED, "several operations")
FEATURES = ("extend", "decode", *OPERATED, *PADDED, "mask", "positions", KEEP, "several rows")


def features_of(case: Case) -> frozenset[str]:
    """Returns the FEATURES of `case`: kinds of steps (`new` for a second cache), ragged calls,
    trees, padding, optional arguments, more than one row."""
    steps = list(case.steps())
    kinds = {step.kind for step in steps if step.kind != "new" or step.index > 0}
    kinds |= {step.operation.word for step in steps if isinstance(step.operation, Ragged | Tree)}
    sides = {
        f"{step.operation.side} padding" for step in steps if isinstance(step.operation, Padded)
    }
    rows = {"several rows"} if any(step.batch > 1 for step in steps) else set()
    return frozenset((kinds | sides | rows | set(case.arguments)) & set(FEATURES))


def family(case: Case) -> str:
    """Returns the one of FAMILIES that `case` belongs to."""
    found = features_of(case)
    operations = [word for word in OPERATED if word in found - {"switch"}]
    if found & set(PADDED):
        return "several operations" if operations else "padding"
    if operations:
        return operations[0] if len(operations) == 1 else "several operations"
    if case.arguments:
        return "given arguments"
    sizes = [step.size for step in case.steps() if step.feeds]
    if set(sizes) == {1}:
        return "token by token"
    if len(sizes) == 1:
        return "prefill only"
    return "prefill + decode" if set(sizes[1:]) == {1} else "chunks"


OVERSHOOT = "overshoot"


def overshoots(case: Case) -> bool:
    """Whether a step crops more tokens than the cache holds."""
    return any(
        isinstance(step.operation, Crop) and step.operation.count > len(step.before[0])
        for step in case.steps()
    )


def longest_read(case: Case) -> int:
    """Returns the most slots of a row after a call that read its cache; 0 if none did. Where that
    is more than n, a cached row has crossed the length n."""
    if case.is_plain:
        return case.length if case.reads_cache else 0
    return max(
        (len(step.after[0]) for step in case.steps() if step.feeds and step.before[0]), default=0
    )
