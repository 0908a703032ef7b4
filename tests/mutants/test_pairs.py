"""Two faults at once: composed, drawn, found again by their joined id."""

import pytest

from kvfuzz.errors import UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.run import run_cached
from mutants.campaign.result import Result
from mutants.campaign.score import MASKED, score, with_masking
from mutants.library.mutant import steps
from mutants.library.pairs import drawn_pairs, pair
from mutants.library.registry import find, library

ZOO = load("zoo")
FIRST, SECOND = "norm.skips_before_the_readout", "position.one_too_far"


def logits(mutant, case):
    return run_cached(mutant.into(ZOO.subject(case), case.dtype), case)


def test_a_pair_has_both_faults():
    """Its logits are those of neither, and it is listed with the lines and the targets of both."""
    both, case = find(f"{FIRST}+{SECOND}"), steps(2, 1)
    assert both.id == f"{FIRST}+{SECOND}"
    assert both.operator == "pair"
    assert set(both.targets) == {*find(FIRST).targets, *find(SECOND).targets}
    assert find(FIRST).source in both.source
    assert find(SECOND).source in both.source
    together = logits(both, case)
    assert not together.equal(logits(find(FIRST), case))
    assert not together.equal(logits(find(SECOND), case))


def test_the_second_is_put_upon_the_first_where_they_replace_the_same():
    """One position too far and one behind: together neither, but for the first token, which the
    second of the two keeps at nought."""
    both = find("position.one_behind+position.one_too_far")
    assert both.targets == find("position.one_behind").targets
    case = steps(3, 1)
    clean = ZOO.subject(case)
    assert check(both.into(clean, case.dtype), case).status == "diverged"
    undone = find("position.one_too_far+position.one_behind")
    assert check(undone.into(clean, case.dtype), case).status == "agreed"


@pytest.mark.parametrize(
    ("mutant_id", "message"),
    [
        ("scale.keys_too_large+norm.normalises_twice", "cannot be paired"),
        ("read.takes_the_second_block_first+append.prepends", "cannot be paired"),
        ("norm.normalises_twice+norm.normalises_twice", "cannot be paired"),
        ("vacuity.attention_adds_nothing+norm.normalises_twice", "cannot be paired"),
        ("norm.normalises_twice+norm.normalises_twize", "there is no mutant"),
    ],
)
def test_what_cannot_be_paired_is_refused(mutant_id, message):
    """A size, settings that exclude each other, the same twice, another law, an unknown id."""
    with pytest.raises(UsageError, match=message):
        find(mutant_id)


def test_pairs_are_drawn_by_the_seed():
    """Of faults that replace different functions; all there are, if more are asked for."""
    mutants = list(library().values())
    drawn = drawn_pairs(mutants, 30, seed=1)
    assert len({each.id for each in drawn}) == 30
    assert [each.id for each in drawn_pairs(mutants, 30, seed=1)] == [each.id for each in drawn]
    assert [each.id for each in drawn_pairs(mutants, 30, seed=2)] != [each.id for each in drawn]
    for each in drawn:
        one, other = each.parts
        assert not set(one.targets) & set(other.targets)
        assert find(each.id).id == each.id
    two = [find(FIRST), find(SECOND)]
    assert [each.id for each in drawn_pairs(two, 5, seed=1)] == [f"{FIRST}+{SECOND}"]


def test_what_masks_each_other_says_so():
    """Where both were killed alone, and the pair was not."""
    killed = [Result(name, "test", "killed") for name in ("a", "b")]
    alone = [*killed, Result("a+b", "pair", "survived"), Result("a+c", "pair", "survived")]
    assert [result.reason for result in with_masking(alone)] == [None, None, MASKED, None]
    both = [*killed, Result("a+b", "pair", "killed")]
    assert with_masking(both) == both


def test_the_score_of_pairs_is_that_of_one_worker_or_two():
    """A worker finds a pair by its id; two that undo each other survive, and are told."""
    ids = ("position.one_too_far", "position.one_behind")
    asked = (*ids, "position.one_too_far+position.one_behind")
    options = {"ids": asked, "pairs": 1, "examples": 12, "seed": 4, "shrink": False}
    one, two = (score("zoo", workers=workers, **options) for workers in (1, 2))
    states = {result.id: result.state for result in one.results}
    assert states == {result.id: result.state for result in two.results}
    assert set(states) == {*asked}  # the two have one target, so no pair of them is drawn
    assert states == dict(zip(asked, ("killed", "killed", "survived"), strict=True))
    assert [result.reason for result in one.results if result.state == "survived"] == [MASKED]


def test_a_pair_of_different_targets_joins_the_score():
    """And is killed as its parts are."""
    made = score("zoo", ids=(FIRST, SECOND), pairs=3, examples=8, seed=1, shrink=False)
    assert {result.id: result.state for result in made.results} == {
        FIRST: "killed",
        SECOND: "killed",
        f"{FIRST}+{SECOND}": "killed",
    }


def test_a_pair_can_be_joined_again():
    """Three at once: a pair is a mutant."""
    three = pair(find(f"{FIRST}+{SECOND}"), find("append.drops_the_newest"))
    assert find(three.id).id == three.id
