"""A prefix hit: a copy of the first tokens of a cache is continued, and no logits are computed for
them."""

from dataclasses import replace

import pytest

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, Restore, Rollback, Switch
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory
from kvfuzz.testing.state_machine import new_program
from tests.seeds import SEEDS
from tests.subjects.recomputing import Recomputes

SPACE = space_of(as_factory(Recomputes))


class OneTooMany(Recomputes):
    """A copy that is cut holds one token more than it should."""

    def copy(self, cache):
        copied = super().copy(cache)
        copied.is_hit = True
        return copied

    def crop(self, cache, count):
        return super().crop(cache, count - (getattr(cache, "is_hit", False) and count > 1))


def hits(case):
    """The forks of `case` that are cut at once."""
    entries = list(zip(case.schedule, case.schedule[1:], strict=False))
    return [one for one, after in entries if one == Fork() and isinstance(after, Crop)]


def test_a_hit_is_a_fork_and_a_crop():
    """Of a cache that holds something; never of all that it holds, and not beyond three caches."""
    program = new_program(SPACE, 1)
    program.add("hit", 2, ())
    assert program.entries == []
    for _ in range(3):
        program.add("feed", 3, ())
        program.add("hit", 2, ())
    assert program.entries == [3, Fork(), Crop(1), 3, Fork(), Crop(2), 3]


def test_a_hit_of_uneven_rows_is_rolled_back():
    program = new_program(replace(SPACE, offers=SPACE.offers | {"rollback", "lengths"}), 2)
    program.add("ragged", 3, (0, 1))
    program.add("hit", 1, ())
    assert program.entries[1:] == [Fork(), Rollback((1, 1))]


def test_hits_are_drawn_and_go_back_to_what_they_were_made_from():
    cases = draw_cases(SPACE, 0, 150)
    found = [case for case in cases if hits(case)]
    assert len(found) >= 2
    assert any(isinstance(entry, Switch) for case in found for entry in case.schedule)
    kinds = [{type(entry) for entry in case.schedule} for case in cases]
    assert any({Restore, Crop} <= kind for kind in kinds)
    without = draw_cases(replace(SPACE, offers=SPACE.offers - {"crop"}), 0, 60)
    assert not any(map(hits, without))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_hit_diverges_and_shrinks(seed):
    hunt = kvfuzz.fuzz(OneTooMany, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    assert hunt.failure.case.schedule in (
        (3, Fork(), Crop(2), 1),
        (2, Fork(), Crop(2), 1),
        (2, 1, Fork(), Crop(2), 1),
    )


def test_a_right_hit_agrees():
    case = Case(((1, 2, 3, 4, 5),), (3, Fork(), Crop(2), 1, Switch(0), 1))
    assert kvfuzz.check(Recomputes(), case).status == "agreed"
