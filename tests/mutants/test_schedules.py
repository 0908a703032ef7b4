"""Each element of the schedules earns its place: without it, at least two mutants survive."""

import pytest

from kvfuzz.case.features import FEATURES, features_of
from mutants.campaign.score import score
from mutants.library.registry import find

TWO_EACH = {
    "extend": ("append.later_chunk_replaces_all", "norm.skips_on_later_chunks"),
    "decode": ("layer.reads_the_layer_below_on_decode", "phase.no_penalty_for_distance_on_decode"),
    "crop": ("crop.drops_one_too_many", "crop.forgets_the_last_layer"),
    "reorder": ("reorder.takes_a_permutation_for_no_change", "reorder.goes_the_other_way"),
    "select": ("reorder.frees_the_selected_rows", "reorder.takes_the_first_rows_for_the_selected"),
    "repeat": (
        "reorder.takes_the_next_row_for_a_repeated_one",
        "reorder.shares_the_blocks_of_a_repeated_row",
    ),
    "fork": ("fork.lacks_the_newest", "fork.starts_the_recurrent_state_anew"),
    "rollback": ("rollback.drops_as_many_of_every_row", "rollback.drops_the_least_of_every_row"),
    "ragged": ("ragged.takes_what_fills_up_for_text", "ragged.takes_the_lengths_of_other_rows"),
    "restore": ("restore.saves_one_slot_too_few", "restore.loses_the_recurrent_state"),
    "reset": ("reuse.reset_leaves_what_is_stored", "reuse.reset_leaves_the_first"),
    "new": ("reuse.begins_with_the_state_of_another", "reuse.takes_the_slots_of_another"),
    "switch": ("fork.shares_its_storage", "fork.takes_the_last_block_with_it"),
    "tree": ("tree.sees_other_branches", "tree.keeps_all_candidates"),
    "join": ("join.puts_the_other_rows_first", "join.takes_the_keys_alone"),
    "logits_to_keep": ("keep.keeps_the_first", "keep.repeats_the_last_position"),
    "left padding": ("padding.on_the_left_is_taken_for_text", "padding.in_front_of_a_row_is_seen"),
    "right padding": (
        "padding.on_the_right_is_taken_for_text",
        "recurrent.takes_padding_on_the_right_in",
    ),
    "mask": ("padding.is_taken_for_text", "given.mask_hides_what_is_there"),
    "positions": (
        "given.positions_are_taken_for_offsets",
        "given.positions_make_way_for_slot_numbers",
    ),
    "several rows": ("read.takes_the_table_of_the_first_row", "reorder.of_two_rows_moves_one"),
}

# The zoo rolls back, and drops candidates that are not accepted, with the crop of its storage. Rows
# of unequal length leave empty slots, as padding does, by a mask of the zoo's own; and candidates
# get positions of its own.
UNEQUAL = {"rollback", "ragged", "tree", "join"}
ALSO = dict.fromkeys(("left padding", "right padding", "mask"), UNEQUAL)
ALSO |= {"crop": {"rollback", "tree"}, "positions": {"tree"}}


def test_each_element_has_two_mutants():
    """A new element of the schedules needs two as well."""
    assert set(TWO_EACH) == set(FEATURES)


@pytest.fixture(scope="module")
def matrix():
    """The kill matrix of these mutants on the cases of one seed."""
    ids = tuple(name for pair in TWO_EACH.values() for name in pair)
    return score("zoo", mutants=ids, seed=0, examples=60, matrix=True, shrink=False)


@pytest.mark.parametrize("element", TWO_EACH)
def test_only_cases_with_the_element_kill_its_two_mutants(element, matrix):
    """Each is killed, and every case that kills it has the element."""
    results = {result.id: result for result in matrix.results}
    for name in TWO_EACH[element]:
        mutant, kills = find(name), results[name].kills
        assert kills
        assert all(
            {element, *ALSO.get(element, ())}
            & features_of(mutant.with_required_config(matrix.cases[index]))
            for index in kills
        )
