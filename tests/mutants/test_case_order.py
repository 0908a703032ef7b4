"""The order in which a mutant meets the cases."""

from dataclasses import replace

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop
from mutants.campaign.case_order import CaseTraits, order_cases
from mutants.library.registry import find, select
from mutants.mutant import steps

FAULT = find("crop.keeps_one_too_many")  # its witness is fed, cropped and fed
CROPPED = Crop(1)


def order(*cases):
    """The indices of `cases` in the order in which the fault meets them."""
    return order_cases(FAULT, cases, tuple(CaseTraits.of(case) for case in cases))


def test_a_case_with_the_steps_of_the_witness_comes_first():
    """Then one that has them in another order, then one that lacks one."""
    lacks = steps(4, 3, 1)
    turned = steps(4, 3, 1, CROPPED)
    has = steps(4, CROPPED, 3, 1)
    assert order(lacks, turned, has) == [2, 1, 0]


def test_of_two_that_lack_nothing_the_one_with_less_besides_comes_first():
    """What else happens may hide a fault, or take it away."""
    more = steps(4, CROPPED, 3, 1, given=("positions",))
    less = steps(4, CROPPED, 3, 1)
    assert order(more, less) == [1, 0]


def test_a_setting_of_the_witness_counts_as_the_case_is_fitted():
    """A fault that needs a cache of one kind gives it to every case; another one it looks for."""
    fault = replace(FAULT, needs={}, witness=replace(FAULT.witness, config={"cache": "paged"}))
    cases = [steps(4, CROPPED, 1, cache=kind) for kind in ("static", "paged")]
    likenesses = tuple(CaseTraits.of(case) for case in cases)
    assert order_cases(fault, cases, likenesses) == [1, 0]
    fitted = replace(fault, needs={"cache": ("paged",)})
    assert order_cases(fitted, cases, likenesses) == [0, 1]


@pytest.mark.parametrize("fault", select("zoo")[0][::20], ids=lambda fault: fault.id)
def test_no_case_is_left_out(fault):
    """Whatever the witness is."""
    cases = [Case(((1,) * size,), (size - 1, 1), dtype="float64") for size in range(2, 12)]
    assert sorted(order_cases(fault, cases, tuple(map(CaseTraits.of, cases)))) == [*range(10)]
