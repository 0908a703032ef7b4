"""The promise of a fuzzer: this fault is found within so many cases, and shrinks to exactly this.

The tokens shrink to zeros, the model to the source text's, and the schedule to the story of the
bug.
"""

import pytest

from kvfuzz.case.schedule import Crop, Fork, Padded, Reorder, Reset, Restore
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.zoo.config import DecoderConfig
from mutants.library.registry import find
from tests.seeds import SEEDS

STORIES = {
    "position.one_too_far": (1,),
    "position.one_behind": (1, 1),
    "position.restarts_at_each_chunk": (1, 1),
    "position.counts_first_chunk_twice": (1, 1),
    "position.stops_after_the_prompt": (1, 1, 1),
    "position.counts_calls": (2, 1),
    "position.uncounted_last_token_of_a_chunk": (2, 1),
    "layer.reads_the_layer_below_on_decode": (1, 1),
    "append.drops_the_newest": (1,),
    "append.drops_the_oldest": (1, 1),
    "append.later_chunk_replaces_all": (1, 2),
    "append.reversed_in_the_chunk": (2,),
    "norm.skips_on_later_chunks": (1, 2),
    "norm.statistics_of_the_first_token": (2,),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("mutant_id", "schedule"), STORIES.items())
def test_a_fault_is_found_soon_and_shrinks_to_its_story(mutant_id, schedule, seed):
    """One row, the fewest tokens, the default decoder, whatever the seed."""
    hunt = fuzz(f"mutant:{mutant_id}", seed=seed)
    assert hunt.cases <= 50
    case = hunt.failure.case
    assert case.schedule == schedule
    assert case.tokens == ((0,) * sum(schedule),)
    assert case.seed == 0
    assert (case.config["layers"], case.config["window"], case.dtype) == (2, None, "float32")


TWO, TWO_ROWS = ((0, 0),), ((0, 0), (1, 0))
PROGRAMS = {
    "crop.leaves_positions_where_they_were": ((1, Crop(1), 1), TWO),
    "reorder.takes_a_permutation_for_no_change": ((1, Reorder((1, 0)), 1), TWO_ROWS),
    "reorder.of_two_rows_moves_one": ((1, Reorder((1, 0)), 1), TWO_ROWS),
    "reorder.takes_the_next_row_for_a_repeated_one": ((1, Reorder((0, 0)), 1), TWO_ROWS),
    "fork.lacks_the_newest": ((1, Fork(), 1), TWO),
    "restore.saves_one_slot_too_few": ((1, Restore(), 1), TWO),
    "restore.loses_the_recurrent_state": ((1, Restore(), 1), TWO),
    "reuse.reset_leaves_what_is_stored": ((1, Reset(), 1), ((0, 1),)),
    "padding.on_the_left_is_taken_for_text": ((Padded(2, "left", (1,)),), TWO),
    "window.is_one_short": ((1, 1, 1), ((0, 0, 0),)),
    "window.is_one_long": ((1, 1, 1, 1), ((0, 0, 0, 0),)),
    "recurrent.starts_from_nothing_at_a_later_chunk": ((1, 2), ((0, 0, 0),)),
    "shared_kv.sees_the_call_alone": ((1, 1), TWO),
    "recurrent.starts_from_nothing_at_each_token": ((1, 1), TWO),
    "mask.aligned_at_the_first_slot": ((1, 1), TWO),
}
"""What each shrinks to: the schedule, and the tokens of each row."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("mutant_id", "program"), PROGRAMS.items())
def test_a_fault_of_an_operation_shrinks_to_its_program(mutant_id, program, seed):
    """With the fewest steps and tokens, on the plainest decoder that has the fault; tokens of
    zero and one, in two rows at most."""
    # By agreement alone: the frame law sees some of them without the last step.
    hunt = fuzz(f"mutant:{mutant_id}", seed=seed, laws=())
    assert hunt.cases <= 50
    case = hunt.failure.case
    schedule, tokens = program
    assert case.schedule == schedule
    assert len(tokens) <= case.batch <= 2
    assert {token for row in case.tokens for token in row} <= {0, 1}
    needs = {name: fit[0] for name, fit in find(mutant_id).needs.items()}
    plainest = DecoderConfig(**needs)
    assert DecoderConfig(**case.config) == plainest
    assert case.given == (("mask",) if "padding" in mutant_id else ())
