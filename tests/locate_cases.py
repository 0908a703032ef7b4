"""The cases on which the tests of `kvfuzz.locate` run their decoders."""

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Padded


def case(*schedule, rows=2, given=(), vocabulary=29):
    """Rows of different tokens, fed by `schedule`."""
    sizes = [entry if isinstance(entry, int) else getattr(entry, "size", 0) for entry in schedule]
    table = [
        [(7 * i + 5 * row * (row + 1) + 1) % vocabulary for i in range(sum(sizes))]
        for row in range(rows)
    ]
    return Case(tuple(map(tuple, table)), schedule, given=given)


PLAIN = case(3, 1, 2)
LEFT = case(Padded(4, "left", (1, 2)), 1, 2, given=("mask",))
RIGHT = case(Padded(4, "right", (1, 2)), 1, 2, given=("mask",))
