"""Wrong recurrence: the state is lost between calls, or takes in what it should not."""

import torch

from kvfuzz.case.schedule import Padded
from kvfuzz.subjects.zoo.recurrence import State, reset
from kvfuzz.subjects.zoo.weights import KERNEL
from mutants.mutant import mutant, steps

NEEDS = {"mix": ("recurrent",), "cache": ("concatenated", "static", "ring")}
CHUNKS = steps(1, 2, mix="recurrent")


def _begun(history):
    """Whether the state has taken in a token."""
    return bool(history[-1].recent.any())


@mutant(
    ".recurrence:steps",
    site="0.attention",
    witness=CHUNKS,
    seen_in="huggingface/transformers#46741",
)
def starts_from_nothing_at_a_later_chunk(real):
    """A later chunk of several tokens starts from an empty state, as if it were a new prompt."""

    def steps_of(history, gate, value, kernel, text):
        fresh = reset(history) if value.shape[1] > 1 else history
        return real(fresh, gate, value, kernel, text)

    return steps_of


@mutant(
    ".recurrence:steps",
    site="0.attention",
    witness=steps(1, 1, mix="recurrent"),
    seen_in="lablup/mlxcel#1220",
)
def starts_from_nothing_at_each_token(real):
    """A call of one token starts from an empty state."""

    def steps_of(history, gate, value, kernel, text):
        fresh = reset(history) if value.shape[1] == 1 else history
        return real(fresh, gate, value, kernel, text)

    return steps_of


@mutant(
    ".recurrence:steps",
    site="0.attention",
    witness=CHUNKS,
    seen_in="huggingface/transformers#46032",
)
def takes_the_first_of_a_later_chunk_alone(real):
    """A later chunk updates the state with its first token only, whose output all its tokens
    get."""

    def steps_of(history, gate, value, kernel, text):
        if not _begun(history) or value.shape[1] == 1:
            return real(history, gate, value, kernel, text)
        hidden, _ = real(history, gate, value, kernel, text)
        first = None if text is None else text[:, :1]
        _, states = real(history, gate[:, :1], value[:, :1], kernel, first)
        padding = [states[-1]] * (value.shape[1] - 1)
        return hidden[:, :1].expand_as(hidden), [*states, *padding][-4:]

    return steps_of


@mutant(
    ".recurrence:steps",
    site="0.attention",
    witness=CHUNKS,
    seen_in="huggingface/transformers#42017",
)
def forgets_the_tail_of_the_convolution_at_a_later_chunk(real):
    """A later chunk of several tokens runs the convolution as if nothing came before it."""

    def steps_of(history, gate, value, kernel, text):
        if value.shape[1] > 1:
            last = history[-1]
            history = [*history[:-1], State(torch.zeros_like(last.recent), last.hidden)]
        return real(history, gate, value, kernel, text)

    return steps_of


@mutant(".recurrence:steps", site="0.attention", witness=steps(1, 1, mix="recurrent"))
def leaves_the_tail_of_a_short_prompt_at_its_front(real):
    """A prompt shorter than the convolution's kernel leaves its inputs at the wrong end of the
    buffer, in reverse order."""

    def steps_of(history, gate, value, kernel, text):
        began = _begun(history)
        hidden, states = real(history, gate, value, kernel, text)
        if not began and value.shape[1] < KERNEL - 1:
            last = states[-1]
            states = [*states[:-1], State(last.recent.flip(1), last.hidden)]
        return hidden, states

    return steps_of


@mutant(
    ".recurrence:step",
    site="0.attention",
    witness=steps(Padded(2, "left", (1,)), 1, mix="recurrent"),
    seen_in="huggingface/transformers#32677",
)
def takes_padding_in(real):
    """Padding updates the recurrent state."""
    return lambda state, gate, value, kernel, text: real(state, gate, value, kernel, None)


@mutant(
    ".recurrence:steps",
    site="0.attention",
    witness=steps(Padded(3, "right", (1,)), 1, mix="recurrent"),
    seen_in="huggingface/transformers#48256",
)
def takes_padding_on_the_right_in(real):
    """Padding on the right of a call updates the recurrent state."""

    def steps_of(history, gate, value, kernel, text):
        if text is not None:
            text = text.int().cummax(1).values.bool()
        return real(history, gate, value, kernel, text)

    return steps_of
