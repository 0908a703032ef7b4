"""Side inputs: what a row is given besides its tokens."""

import pytest
import torch

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Fork, Join, New, Ragged, Reorder, Reset, Rollback
from kvfuzz.errors import InvalidSubject
from kvfuzz.oracle.laws import check_companion
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.run import run_cached, run_uncached
from kvfuzz.subjects.sides import sides_of
from tests.seeds import SEEDS
from tests.subjects import sides as subjects

TOKENS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12))


class Told(subjects.Captions):
    """Notes the side inputs of every call."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.told = []

    def uncached(self, tokens, *, sides=None):
        self.told.append(sides)
        return super().uncached(tokens, sides=sides)

    def cached(self, tokens, cache, *, sides=None):
        self.told.append(sides)
        return super().cached(tokens, cache, sides=sides)


def test_both_paths_are_told_the_side_input_of_each_row():
    """Its first token, modulo how many there are; a row keeps it where it moves, and another
    sequence has its own."""
    subject = Told()
    run_uncached(subject, TOKENS)
    assert subject.told[0].dtype == torch.int64
    assert subject.told[0].tolist() == [1, 1]
    subject.told.clear()
    run_cached(subject, Case(((1, 2, 3, 4), (2, 8, 9, 4)), (1, Reorder((1, 0)), 1, Reset(), 2)))
    assert [sides.tolist() for sides in subject.told] == [[1, 2], [2, 1], [3, 3]]


def test_a_row_without_text_has_the_first_side_input():
    assert sides_of(subjects.Captions(), ((), (8,)), torch.device("cpu"))["sides"].tolist() == [
        0,
        2,
    ]
    assert sides_of(kvfuzz.load("zoo:llama"), TOKENS, torch.device("cpu")) == {}


def wrong(faults):
    """A class of subjects that have these attributes."""

    class Wrong(subjects.Captions):
        def __init__(self):
            super().__init__()
            for name, value in faults.items():
                setattr(self, name, value)

    return Wrong


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"side_inputs": 0}, "side_inputs should be a positive integer, got 0"),
        ({"side_inputs": True}, "side_inputs should be a positive integer, got True"),
        ({"uncached": lambda tokens: None}, r"uncached\(\) should take an argument sides"),
        ({"cached": lambda tokens, cache: None}, r"cached\(\) should take an argument sides"),
    ],
)
def test_a_malformed_declaration_is_refused_by_name(faults, words):
    with pytest.raises(InvalidSubject, match=words):
        kvfuzz.fuzz(wrong(faults))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("subject", [subjects.Captions, subjects.Adapters])
def test_a_decoder_with_side_inputs_agrees(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, examples=60)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.ReadsTheFirstImage,
        subjects.LeavesImagesBehind,
        subjects.KeepsTheImageOfTheLastCache,
        subjects.KeepsTheImageThroughAReset,
        subjects.MixesAdaptersUp,
    ],
)
def test_a_wrong_side_input_diverges(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    assert hunt.failure.case.batch <= 2


@pytest.mark.parametrize(
    "schedule",
    [
        (2, Reorder((1, 0)), 2, Reset(), 2),
        (New(1), 2, New(1), 2, Join(0), 2),
        (2, Fork(), 1, Rollback((1, 3)), 3),
        (Ragged((2, 0)), Ragged((1, 2)), 2),
    ],
)
def test_the_cross_attention_of_the_zoo_follows_its_rows(schedule):
    factory = load("zoo:cross")
    case = Case(TOKENS, schedule, dtype="float64", config=factory.first_config())
    assert kvfuzz.check(factory.subject(case), case).status == "agreed"


def test_a_search_gets_no_side_inputs():
    """So it is not asked for, and the law of generation says nothing."""
    assert "generate" not in offers_of(subjects.Searches())
    found = check_companion("generation", subjects.Searches(), Case(TOKENS, (3, 3)))
    assert (found.status, found.reason) == ("discarded", "generate() gets no side inputs")


@pytest.mark.parametrize("law", ["causality", "isolation", "repeatability"])
def test_the_other_laws_hold(law):
    assert check_companion(law, subjects.Captions(), Case(TOKENS, (3, 3))).status == "agreed"


def test_noise_is_measured_with_the_side_inputs_of_the_rows():
    """By perturbing the weights, and by the decoder's own sets of weights."""
    for factory in (as_factory(subjects.Captions), load("zoo:cross")):
        case = Case(TOKENS, (3, 3), config=factory.first_config())
        found = kvfuzz.oracle.agreement.check_agreement(factory.subject(case), case, measure=True)
        assert (found.verdict.status, found.verdict.basis) == ("agreed", "measured")
