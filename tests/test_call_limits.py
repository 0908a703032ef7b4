"""Subjects that take only some calls, or return only some logits, and say so."""

from dataclasses import replace

import pytest
import torch

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.schedule import Crop, New, Padded, Reorder, columns_of
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.report.text import hunt_text
from kvfuzz.search.judge import check_law
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.shrink import judge_like, shrink
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.call_limits import CallLimits, call_limits_of
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.run import compared, run_uncached
from mutants.generic.equivalence_checks import orderless, unchanging_caches
from mutants.generic.module_roles import module_roles
from mutants.generic.probe_programs import probes
from tests.seeds import SEEDS
from tests.subjects import limited as subjects
from tests.test_generation_law import Searches

LIMITED = (
    subjects.Short,
    subjects.PrefillThenDecode,
    subjects.InBlocks,
    subjects.InFewBlocks,
    subjects.Padded,
)


def drawn(subject, seed=0, examples=100):
    return draw_cases(space_of(as_factory(subject)), seed, examples)


def calls_of(case):
    return [(step.size, any(step.before)) for step in case.steps() if step.feeds]


@pytest.mark.parametrize("subject", LIMITED)
def test_a_decoder_with_limits_agrees_and_no_case_is_drawn_again(subject):
    """Each of these raises in a call that it does not take."""
    hunt = kvfuzz.fuzz(subject, seed=0, examples=25)
    assert hunt.verdict == "agreed"
    assert hunt.discarded == 0 or subject is subjects.Padded


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("subject", LIMITED)
def test_only_calls_within_the_limits_are_drawn(subject, seed):
    calls = call_limits_of(subject())
    found = [call for case in drawn(subject, seed) for call in calls_of(case)]
    assert all(calls.takes(*call) for call in found)


def test_what_the_limits_leave_is_drawn():
    """Limits do not thin out what is drawn: calls of the largest size, and long rows."""
    for subject, size in ((subjects.Short, 5), (subjects.InBlocks, 8), (subjects.InFewBlocks, 8)):
        cases = drawn(subject)
        assert any((size, False) in calls_of(case) for case in cases)
        assert any(case.length >= 15 for case in cases)
    assert any((5, True) in calls_of(case) for case in drawn(subjects.Short))
    assert any((8, True) in calls_of(case) for case in drawn(subjects.InBlocks))


def test_without_limits_other_calls_are_drawn():
    found = [call for case in drawn(subjects.Decoder) for call in calls_of(case)]
    assert not all(CallLimits(longest=5).takes(*call) for call in found)
    assert not all(CallLimits(chunks=False).takes(*call) for call in found)
    assert not all(CallLimits(multiple=4).takes(*call) for call in found)


def test_a_call_is_divided_into_those_that_are_taken():
    assert CallLimits(longest=8).pieces(20, filled=False) == (8, 8, 4)
    assert CallLimits(chunks=False).pieces(5, filled=False) == (5,)
    assert CallLimits(chunks=False).pieces(3, filled=True) == (1, 1, 1)
    assert CallLimits(multiple=4).pieces(10, filled=True) == (8, 1, 1)
    assert CallLimits(longest=9, multiple=4, chunks=False).pieces(10, filled=False) == (8, 1, 1)
    assert CallLimits().pieces(7, filled=True) == (7,)


@pytest.mark.parametrize(
    ("subject", "schedule", "words"),
    [
        (subjects.Short, (6,), "6 tokens.*longest_call = 5"),
        (subjects.PrefillThenDecode, (3, 2, 1), "2 tokens.*chunks = False"),
        (subjects.InBlocks, (4, 2), "2 tokens.*multiple_of = 4"),
        (subjects.OneRow, (2, Reorder((0, 0)), 1), "2 rows.*max_rows = 1"),
    ],
)
def test_a_case_outside_the_limits_is_refused(subject, schedule, words):
    columns = sum(entry for entry in schedule if isinstance(entry, int))
    case = Case((tuple(range(columns)), (0,) * columns), schedule)
    if subject is subjects.OneRow:
        case = replace(case, schedule=(New(1), *schedule))
    with pytest.raises(InvalidCase, match=words):
        kvfuzz.check(subject(), case)


def test_a_cache_that_was_emptied_takes_a_prompt_again():
    case = Case(((1, 2, 3, 4, 5),), (3, Crop(3), 2))
    assert kvfuzz.check(subjects.PrefillThenDecode(), case).status == "agreed"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("longest_call", 0, "longest_call should be a positive integer or None, got 0"),
        ("longest_call", True, "longest_call should be a positive integer"),
        ("longest_call", "8", "longest_call should be a positive integer"),
        ("chunks", 1, "chunks should be True or False, got 1"),
        ("multiple_of", 0, "multiple_of should be a positive integer, got 0"),
        ("multiple_of", 2.0, "multiple_of should be a positive integer"),
        ("last_only", "yes", "last_only should be True or False"),
        ("max_rows", 0, "max_rows should be a positive integer or None, got 0"),
        ("padding_between", None, "padding_between should be True or False, got None"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(name, value, words):
    wrong = type("Wrong", (subjects.Decoder,), {name: value})
    with pytest.raises(InvalidSubject, match=words) as raised:
        kvfuzz.fuzz(wrong)
    assert "\n" not in str(raised.value)


def test_limits_that_contradict_each_other_are_refused():
    small = type("Small", (subjects.Decoder,), {"longest_call": 3, "multiple_of": 4})
    with pytest.raises(InvalidSubject, match="longest_call = 3 leaves no multiple of 4"):
        kvfuzz.fuzz(small)
    both = type("Both", (subjects.Keeps,), {"last_only": True})
    with pytest.raises(InvalidSubject, match="last_only.*logits_to_keep"):
        kvfuzz.fuzz(both)


def test_limits_are_said_in_the_verdict():
    text = hunt_text(kvfuzz.fuzz(subjects.InFewBlocks, seed=0, examples=20))
    assert (
        "calls of at most 9 tokens, of one or a multiple of 4, of one once the cache is filled, "
        "as declared" in text
    )
    text = hunt_text(kvfuzz.fuzz(subjects.Last, seed=0, examples=20))
    assert "logits of the last position of each call alone, as declared" in text
    assert "as declared" not in hunt_text(kvfuzz.fuzz(subjects.Decoder, seed=0, examples=20))


def test_a_shrunk_case_keeps_the_limits():
    """And the fault, which shows in calls of five tokens alone, is found."""
    hunt = kvfuzz.fuzz(subjects.ShortAndWrong, seed=0)
    assert hunt.verdict == "diverged"
    assert all(size <= 5 for size, _ in calls_of(hunt.failure.case))
    assert (5, True) in calls_of(hunt.failure.case)


def test_shrinking_tries_no_call_outside_the_limits():
    factory = as_factory(subjects.InBlocks)
    case = Case((tuple(range(14)),), (8, 4, 1, 1))
    failed = kvfuzz.check(factory.subject(case), case)
    tried = []

    def judged(version):
        tried.append(version)
        return judge_like(failed, factory, version)

    shrink(case, failed, judged, space_of(factory))
    calls = call_limits_of(subjects.InBlocks())
    assert all(calls.takes(*call) for version in tried for call in calls_of(version))
    assert any(len(version.schedule) == 4 and version.length < 14 for version in tried)


@pytest.mark.parametrize("subject", LIMITED)
def test_generic_mutants_are_probed_within_the_limits(subject):
    made = subject()
    like = Case(((0,),), (1,))
    found = list(probes(made, like, {"crop", "reset", "cached"}))
    calls = call_limits_of(made)
    assert len(found) >= 3
    assert all(calls.takes(*call) for case in found for call in calls_of(case))


@pytest.mark.parametrize("subject", [subjects.Short, subjects.PrefillThenDecode])
def test_a_state_machine_keeps_the_limits(subject):
    machine = kvfuzz.state_machine(subject)
    made = machine()
    made.program = kvfuzz.testing.state_machine.new_program(made.space, 2)
    for move in (("feed", 8, ()), ("crop", 2, ()), ("feed", 7, ())):
        made.program.add(*move)
    case = Case(((0,) * 15,), made.program.schedule())
    calls = call_limits_of(subject())
    assert all(calls.takes(*call) for call in calls_of(case))


def test_a_long_padded_call_is_divided_too():
    cases = drawn(subjects.Padded, examples=150)
    padded = [e for case in cases for e in case.schedule if isinstance(e, Padded)]
    assert padded
    assert all(entry.size <= 5 for entry in padded)


# Logits of the last position alone.


def test_the_last_position_of_each_call_is_compared():
    case = Case(((1, 2, 3, 4, 5, 6),), (3, 2, 1))
    assert compared(subjects.Last(), case).tolist() == [[False, False, True, False, True, True]]
    assert compared(subjects.Decoder(), case) is None
    verdict = kvfuzz.check(subjects.Last(), case)
    assert (verdict.status, verdict.positions) == ("agreed", 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_of_last_logits_agrees(seed):
    hunt = kvfuzz.fuzz(subjects.Last, seed=seed, examples=30)
    assert (hunt.verdict, hunt.discarded, hunt.weak) == ("agreed", 0, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("subject", [subjects.LastIsFirst, subjects.LastAndShifted])
def test_wrong_last_logits_diverge(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed)
    assert hunt.verdict == "diverged"
    first = hunt.failure.verdict.first
    step = list(hunt.failure.case.steps())[first.step]
    assert first.column == step.stop - 1
    assert hunt.explanation is not None


def test_no_logits_in_place_of_the_last_diverge():
    """That is a fault of the cached path, not of the declaration."""
    hunt = kvfuzz.fuzz(subjects.LastByTotal, seed=0, locate=False)
    assert (hunt.verdict, hunt.failure.case.schedule) == ("diverged", (1, 1))
    assert "the logits of 0 of 1 positions, and last_only declares 1" in hunt.failure.verdict.error


def test_undeclared_last_logits_are_refused_with_advice():
    with pytest.raises(InvalidSubject, match="last_only = True") as raised:
        kvfuzz.fuzz(subjects.UndeclaredLast)
    assert "\n" not in str(raised.value)


def test_all_logits_of_a_subject_that_declares_the_last_are_refused():
    with pytest.raises(InvalidSubject, match=r"expected \(., 1, 31\)"):
        kvfuzz.fuzz(subjects.Whole)


# The number of logits as an argument.


def test_the_number_of_logits_is_drawn_where_it_is_offered():
    cases = drawn(subjects.Keeps, examples=200)
    numbers = {case.keep for case in cases}
    assert {None, 0, 1, 2} <= numbers
    assert {case.keep for case in drawn(subjects.Decoder)} == {None}
    kept = [case for case in cases if case.keep]
    assert any(step.size > case.keep for case in kept for step in case.steps() if step.before[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_that_keeps_the_last_logits_agrees(seed):
    hunt = kvfuzz.fuzz(subjects.Keeps, seed=seed, examples=40)
    assert (hunt.verdict, hunt.discarded, hunt.weak) == ("agreed", 0, 0)
    assert hunt.exercised["logits_to_keep"] >= 5
    assert hunt.not_exercised().get("logits_to_keep") is None
    other = kvfuzz.fuzz(subjects.Decoder, seed=seed, examples=20)
    assert other.not_exercised()["logits_to_keep"] == "not offered"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.CountsFromTheStart,
        subjects.KeepsTheFirst,
        subjects.KeepsOneEarlier,
        subjects.IgnoresTheNumber,
    ],
)
def test_wrong_kept_logits_diverge(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=seed == 0)
    assert hunt.verdict == "diverged"
    assert hunt.failure.case.keep == 1
    assert f"logits_to_keep {hunt.failure.case.keep}" in hunt_text(hunt)


def test_a_part_laid_over_all_logits_needs_no_offer():
    assert kvfuzz.fuzz(subjects.OverlaysKept, seed=0, examples=50).verdict == "agreed"
    with pytest.raises(InvalidSubject, match="shape"):
        kvfuzz.fuzz(subjects.OverlaysKeptByTotal, seed=0, examples=50)


def test_the_number_of_logits_stays_in_the_file():
    case = Case(((1, 2, 3),), (2, 1), keep=1)
    assert case.to_json()["keep"] == 1
    assert Case.from_json(case.to_json()) == case
    assert "keep" not in Case(((1, 2, 3),), (2, 1)).to_json()
    for wrong in (-1, True, "1"):
        with pytest.raises(InvalidCase, match="keep"):
            Case.from_json({**case.to_json(), "keep": wrong})


def test_a_case_with_the_number_needs_the_offer():
    case = Case(((1, 2, 3),), (2, 1), keep=1)
    assert kvfuzz.check(subjects.Keeps(), case).positions == 2
    with pytest.raises(InvalidCase, match="argument logits_to_keep of cached"):
        kvfuzz.check(subjects.Decoder(), case)


# The number of rows.


@pytest.mark.parametrize("subject", [subjects.TwoRows, subjects.OneRow])
def test_no_call_of_either_path_gets_more_rows(subject):
    """Each of these raises in a call of more; with two caches the texts of both are run."""
    hunt = kvfuzz.fuzz(subject, seed=0, examples=25)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["switch"] > 0
    assert f"rows of a call at most {subject.max_rows}, as declared" in hunt_text(hunt)


def test_more_rows_are_drawn_without_the_limit():
    """So the test above can fail, by a cached call and by an uncached one of several texts."""
    cases = drawn(type("Undeclared", (subjects.TwoRows,), {"max_rows": None}))
    assert max(step.batch for case in cases for step in case.steps()) == 4
    assert max(len(layout(case).sequences) for case in cases) > 4


def test_an_uncached_run_of_many_rows_is_that_of_all():
    """Divided into calls, in order."""
    rows = tuple((n, n + 1, 2 * n) for n in range(5))
    two, any_number = run_uncached(subjects.TwoRows(), rows), run_uncached(subjects.Decoder(), rows)
    assert torch.allclose(two, any_number, atol=1e-6)


class SearchesTwoRows(Searches):
    max_rows = 2

    def run(self, tokens, cache):
        assert len(tokens) <= 2
        return super().run(tokens, cache)


def test_a_search_keeps_to_the_rows_too():
    """Its beams are rows."""
    found = check_law("generation", SearchesTwoRows(), Case(((1, 2, 3), (4, 5, 6)), (2, 1)))
    assert found.status in ("agreed", "vacuous")
    alone = type("One", (SearchesTwoRows,), {"max_rows": 1})()
    assert check_law("generation", alone, Case(((1, 2, 3),), (2, 1))).diverged is False


@pytest.mark.parametrize("subject", [subjects.TwoRows, subjects.OneRow])
def test_generic_mutants_keep_to_the_rows(subject):
    """Probes, and the checks of what is equivalent."""
    made = subject()
    found = list(probes(made, Case(((0,),), (1,)), {"crop", "reset", "reorder", "cached"}))
    assert len(found) >= 3
    assert all(step.batch <= subject.max_rows for case in found for step in case.steps())
    unchanging_caches(made, "float32")
    orderless(made, "float32")
    module_roles(made)


# Padding between texts.


def test_a_window_of_slots_agrees_where_its_padding_is_declared():
    """Padding on the left of a prompt is tested."""
    hunt = kvfuzz.fuzz(subjects.SlotWindow, seed=0, examples=30)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["left padding"] > 5
    assert "no padding behind the first token of a row, as declared" in hunt_text(hunt)


@pytest.mark.parametrize("subject", [subjects.SlotWindowAtHead, subjects.SlotWindowUndeclared])
def test_a_mask_read_at_its_head_diverges_and_so_does_the_undeclared_window(subject):
    hunt = kvfuzz.fuzz(subject, seed=0, locate=False)
    assert hunt.verdict == "diverged"
    split = CallLimits(padding_between=False).refused_step(hunt.failure.case) is not None
    assert split == subject.padding_between


@pytest.mark.parametrize("seed", SEEDS)
def test_no_padding_is_drawn_between_tokens(seed):
    calls = CallLimits(padding_between=False)
    cases = drawn(subjects.SlotWindow, seed)
    assert any("mask" in case.given and not case.is_plain for case in cases)
    assert all(calls.refused_step(case) is None for case in cases)
    undeclared = drawn(subjects.SlotWindowUndeclared, seed)
    assert any(calls.refused_step(case) is not None for case in undeclared)


@pytest.mark.parametrize(
    ("schedule", "step"),
    [
        ((Padded(3, "left", (1, 0)), 2, 1), None),
        ((3, Padded(2, "left", (1, 0)), 1), 1),
        ((Padded(3, "right", (1, 0)), 1), 1),
        ((3, Padded(3, "right", (1, 0))), None),
        ((Padded(3, "right", (1, 0)), Crop(1), 2), None),
    ],
)
def test_where_padding_stands_between_tokens(schedule, step):
    columns = sum(columns_of(entry) or 0 for entry in schedule)
    case = Case((tuple(range(columns)), (0,) * columns), schedule, given=("mask",))
    found = CallLimits(padding_between=False).refused_step(case)
    assert (found and found.index) == step
    assert (CallLimits(padding_between=False).fitted(case) is None) == (step is not None)
