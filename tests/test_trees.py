"""Trees of candidates: one call verifies them all, and each row keeps one branch."""

import pytest
import torch

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.features import features_of
from kvfuzz.case.layout import fed_positions, layout
from kvfuzz.case.schedule import Crop, Padded, Tree
from kvfuzz.errors import InvalidCase, InvalidSubject
from kvfuzz.oracle.laws import check_companion
from kvfuzz.report.text import hunt_text
from kvfuzz.search.programs import focuses
from kvfuzz.search.reductions import shorter_calls
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import as_factory, load
from kvfuzz.subjects.protocol import offers_of
from kvfuzz.subjects.zoo.presets import PRESETS
from kvfuzz.testing.state_machine import new_program
from tests.seeds import SEEDS
from tests.subjects import rows as subjects

TOKENS = ((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12))
TREE = Tree((-1, 0, -1, 2), (1, 2))


def drawn(subject):
    return draw_cases(space_of(as_factory(subject)), seed=0, examples=80)


def trees(case):
    return [entry for entry in case.schedule if isinstance(entry, Tree)]


def test_each_row_keeps_its_own_branch():
    case = Case(TOKENS, (1, TREE, 1))
    _, tree, last = case.steps()
    assert tree.after == ((1, 2, 3, None, None), (7, None, None, 10, None))
    assert fed_positions(tree) == [[1, 2, 1, 2]] * 2
    assert fed_positions(last) == [[3], [2]]
    assert features_of(case) >= {"tree", "extend", "decode"}
    assert kvfuzz.check(subjects.Trees(), case).status == "agreed"


def test_every_candidate_is_compared_with_the_text_that_it_ends():
    found = layout(Case(TOKENS, (1, TREE, 1)))
    assert bool(found.fed.all())

    def text(row, column):
        sequence = found.sequences[int(found.sequence[row, column])]
        return sequence[: int(found.position[row, column]) + 1]

    assert [text(0, column) for column in range(6)] == [
        (1,), (1, 2), (1, 2, 3), (1, 4), (1, 4, 5), (1, 2, 3, 6),
    ]  # fmt: skip
    assert text(1, 5) == (7, 10, 12)


@pytest.mark.parametrize(
    ("schedule", "given", "words"),
    [
        ((TREE, 2), (), "a cache that holds something"),
        ((1, Tree((-1, 1), (0, 0)), 3), (), "or of an earlier candidate"),
        ((1, Tree((-1, -2), (0, 0)), 3), (), "or of an earlier candidate"),
        ((1, Tree((-1, 0), (0,)), 3), (), "a candidate to keep for 2 rows"),
        ((1, Tree((-1, 0), (0, 2)), 3), (), "candidates to keep from -1 to 1"),
        ((1, TREE, 1), ("mask",), "no mask"),
        ((1, TREE, Crop(1), 1), (), "nothing has made unequal"),
        ((1, Tree((), ()), 5), (), "positive chunk sizes"),
    ],
)
def test_a_tree_that_makes_no_sense_is_refused(schedule, given, words):
    with pytest.raises(InvalidCase, match=words):
        Case(TOKENS, schedule, given=given)


def test_a_tree_stays_in_the_file():
    case = Case(TOKENS, (1, TREE, 1))
    assert case.to_json()["schedule"] == [1, ["tree", [-1, 0, -1, 2], [1, 2]], 1]
    assert Case.from_json(case.to_json()) == case


def test_half_an_offer_is_refused_by_name():
    for half in ({"accept": None}, {"cached": subjects.Rows.cached}):
        with pytest.raises(InvalidSubject, match=r"argument parents .* method accept\(cache"):
            kvfuzz.fuzz(type("Half", (subjects.Trees,), half))
    with pytest.raises(InvalidSubject, match="last_only, and its cached.* takes parents"):
        kvfuzz.fuzz(type("Last", (subjects.Trees,), {"last_only": True}))
    with pytest.raises(InvalidCase, match=r"no argument parents of cached\(\)"):
        kvfuzz.check(subjects.Rows(), Case(TOKENS, (1, TREE, 1)))
    with pytest.raises(InvalidSubject, match=r"accept\(\) should return the cache"):
        kvfuzz.check(subjects.ReturnsNothing(), Case(TOKENS, (1, TREE, 1)))
    assert "tree" not in focuses(offers_of(subjects.Rows()))


def test_parents_and_candidates_are_int64():
    got = []

    class Told(subjects.Trees):
        def cached(self, tokens, cache, *, parents=None):
            got.append(parents)
            return super().cached(tokens, cache, parents=parents)

        def accept(self, cache, candidates):
            got.append(candidates)
            return super().accept(cache, candidates)

    kvfuzz.check(Told(), Case(TOKENS, (1, TREE, 1)), probe=False, trace=False)
    _, parents, candidates, last = got
    assert (parents.dtype, candidates.dtype, last) == (torch.int64, torch.int64, None)
    assert (parents.tolist(), candidates.tolist()) == ([-1, 0, -1, 2], [1, 2])


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_storage_of_the_zoo_takes_trees(name):
    """Or refuses them: a ring, and a recurrent layer."""
    factory = load(f"zoo:{name}")
    for schedule in ((1, TREE, 1), (1, Tree((-1, -1), (1, -1)), Tree((-1, 0), (1, 0)), 1)):
        case = Case(TOKENS, schedule, dtype=factory.dtypes[-1], config=factory.first_config())
        found = kvfuzz.check(factory.subject(case), case)
        refused = "refused" in str(found.reason)
        assert found.status == "agreed" or (refused and name in ("recurrent", "ring", "gemma"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoder_that_takes_trees_agrees(seed):
    hunt = kvfuzz.fuzz(subjects.Trees, seed=seed, examples=40)
    assert (hunt.verdict, hunt.discarded) == ("agreed", 0)
    assert hunt.exercised["tree"] >= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "subject",
    [
        subjects.SeesOtherBranches,
        subjects.CountsOtherBranches,
        subjects.DoesNotMoveWhatItKeeps,
        subjects.KeepsOneMore,
    ],
)
def test_a_wrong_tree_diverges_and_shrinks(subject, seed):
    hunt = kvfuzz.fuzz(subject, seed=seed, locate=False)
    assert hunt.verdict == "diverged"
    case = hunt.failure.case
    assert (case.batch, len(trees(case))) == (1, 1)
    assert case.length <= 5
    assert "tree [" in hunt_text(hunt)


def test_a_wrong_tree_is_located():
    """In the decoder, and in a subject without states of its own."""
    hunt = kvfuzz.fuzz(subjects.SeesOtherBranches, seed=0, examples=60)
    assert hunt.verdict == "diverged"
    assert hunt.explanation.location is not None


def test_a_shorter_tree_keeps_what_is_left_of_its_branches():
    case = Case(TOKENS, (1, Tree((-1, 0, -1, 2), (1, 3)), 1))
    space = space_of(as_factory(subjects.Trees))
    found = {entry for shorter in shorter_calls(case, space) for entry in trees(shorter)}
    assert Tree((-1, 0, -1), (1, 2)) in found  # without the last candidate
    assert Tree((-1, -1, 1), (0, 2)) in found  # without the first one


def test_trees_are_drawn_where_they_are_offered():
    """Chains and forks, kept as a whole, in part and not at all; without a mask."""
    for subject, least in ((subjects.Trees, 4), ("zoo", 2)):
        cases = [case for case in drawn(subject) if trees(case)]
        entries = [entry for case in cases for entry in trees(case)]
        assert len(cases) >= least
        assert any(entry.parents != (*range(-1, entry.size - 1),) for entry in entries)
        assert len({candidate for entry in entries for candidate in entry.kept}) > 2
        assert not any("mask" in case.given for case in cases)
        assert not any(isinstance(entry, Padded) for case in cases for entry in case.schedule)


@pytest.mark.parametrize("law", ["causality", "isolation", "repeatability"])
def test_the_other_laws_hold(law):
    case = Case(TOKENS, (1, TREE, 1))
    assert check_companion(law, subjects.Trees(), case).status == "agreed"


def test_a_state_machine_feeds_trees():
    machine = kvfuzz.state_machine(subjects.SeesOtherBranches)()
    machine.program = new_program(machine.space, 1)
    machine.columns = [(1,), (2,), (3,), (4,)]
    machine.program.add("feed", 1, ())
    machine.program.add("tree", 2, (0, 1, 0, 0, 0, 0, 0, 0, 0, 0))
    machine.program.add("feed", 1, ())
    assert machine.program.schedule() == (1, Tree((-1, -1), (1,)), 1)
    with pytest.raises(kvfuzz.Diverges):
        machine.teardown()
