"""Wrong logits_to_keep: a call that is asked for its last logits returns others."""

from dataclasses import replace

import torch

from kvfuzz.case.schedule import Padded
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

LAST = replace(steps(3, 1), keep=1)
LAST_TWO = replace(steps(3, 1), keep=2)
CHUNK = replace(steps(2, 3), keep=1)
SHORT_ROW = replace(steps(Padded(4, "right", (0, 1)), rows=2), keep=2)


@mutant("kept", site="logits", witness=LAST)
def keeps_the_first(real):
    """The first positions of the call are kept, not the last ones."""
    return lambda cache, answer, count: answer[:, :count]


@mutant("kept", site="logits", witness=LAST, seen_in="huggingface/trl#3682")
def keeps_one_position_too_early(real):
    """The right number is kept, one position too early where there is room."""

    def kept(cache, answer, count):
        return real(cache, answer[:, :-1] if answer.shape[1] > count else answer, count)

    return kept


@mutant("kept", site="logits", witness=LAST_TWO)
def repeats_the_last_position(real):
    """Each position that is kept has the logits of the last one."""
    return lambda cache, answer, count: real(cache, answer, 1).expand(-1, count, -1)


@mutant("kept", site="logits", witness=LAST_TWO)
def keeps_them_backwards(real):
    """The positions that are kept come last one first."""
    return lambda cache, answer, count: real(cache, answer, count).flip(1)


@mutant("kept", site="logits", witness=CHUNK)
def keeps_the_first_of_a_later_chunk(real):
    """The end of the call is found right on an empty cache only: later chunks keep their first
    positions."""

    def kept(cache, answer, count):
        later = cache.length > answer.shape[1]
        return answer[:, :count] if later else real(cache, answer, count)

    return kept


@mutant("kept", site="logits", witness=SHORT_ROW)
def counts_back_from_the_text_of_each_row(real):
    """In a batch with padding on the right each row keeps its last positions of text, which are not
    those of its last columns."""

    def kept(cache, answer, count):
        if cache.places is None:
            return real(cache, answer, count)
        text = cache.places[:, -answer.shape[1] :] != NOWHERE
        columns = torch.arange(answer.shape[1], device=answer.device)
        last = torch.where(text, columns, 0).amax(1)
        taken = (last[:, None] - columns[:count].flip(0)).clamp_min(0)
        return answer[torch.arange(len(answer))[:, None], taken]

    return kept
