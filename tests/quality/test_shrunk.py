"""The promise of a fuzzer: this fault is found within so many cases, and shrinks to exactly this.

The tokens shrink to noughts, the model to the source text's, and the schedule to the story of the
bug.
"""

import pytest

from kvfuzz.hunt import fuzz

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


@pytest.mark.parametrize("seed", range(3))
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
