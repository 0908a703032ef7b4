"""The state machine: longer programs by rules, judged as one case."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import kvfuzz
from tests.subjects.recomputing import Recomputes

SETTINGS = settings(
    max_examples=10, deadline=None, database=None, derandomize=True, stateful_step_count=25
)


@pytest.mark.parametrize("subject", [Recomputes, "zoo:ring"])
def test_a_right_decoder_passes(subject):
    """Twenty-five rules in a row."""
    run_state_machine_as_test(kvfuzz.state_machine(subject), settings=SETTINGS)


def test_a_fault_that_needs_a_longer_program_is_found():
    """The third crop of one cache goes wrong, which no short program reaches by luck."""

    class Tires(Recomputes):
        crops = 0

        def new_cache(self, batch):
            self.crops = 0
            return super().new_cache(batch)

        def crop(self, cache, count):
            self.crops += 1
            return super().crop(cache, count - (self.crops == 3))

    # Unshrunk: that takes a minute, and shows nothing here.
    found = settings(SETTINGS, max_examples=200, phases=[Phase.generate])
    with pytest.raises(kvfuzz.Diverges, match="DIVERGED from agreement") as caught:
        run_state_machine_as_test(kvfuzz.state_machine(Tires), settings=found)
    assert str(caught.value).count("'crop'") >= 3


def test_only_what_is_offered_is_done():
    """A subject of three methods is fed, and begun anew."""

    class Bare(Recomputes):
        crop = reorder = copy = save = load = reset = None
        positions_from_mask = False

        def cached(self, tokens, cache):
            return super().cached(tokens, cache)

    run_state_machine_as_test(kvfuzz.state_machine(Bare), settings=SETTINGS)
