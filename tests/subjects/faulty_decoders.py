"""Parts of the decoders in `decoders`, each with one fault in a call after the first.

Each overrides one method; the comment `fault` marks the line to find.
"""

import inspect
from itertools import count

import torch
import torch.nn.functional as F
from torch import nn

from tests.subjects.decoders import (
    HEADS,
    LAYERS,
    Allocated,
    AllocatedDecoder,
    Block,
    Decoder,
    Fused,
    Grouped,
    Kernel,
    Net,
    PaddedDecoder,
    Recurrence,
    Stacked,
)


def line_of(cls):
    """The number of the line of `cls` that is marked as its fault."""
    lines, start = inspect.getsourcelines(cls)
    (number,) = (n for n, line in zip(count(start), lines, strict=False) if "# fault" in line)
    return number


class SharesTheWrongWay(Grouped):
    """Heads of a decode step are repeated as blocks, not one by one."""

    def shared(self, states, old):
        if old:
            return states.repeat(1, HEADS // self.groups, 1, 1)  # fault
        return super().shared(states, old)


class WritesToTheNextLayer(Grouped):
    """A later call reads the keys of the layer below."""

    def stored(self, cache, key, value, old):
        _, value = super().stored(cache, key, value, old)
        layer = self.layer - 1 if old and self.layer else self.layer
        return cache.keys[layer], value  # fault


class RollsItsRows(Grouped):
    """A later call gives each row the new keys of the row before it."""

    def stored(self, cache, key, value, old):
        if old and self.layer == 1:
            key = key.roll(1, 0)  # fault
        return super().stored(cache, key, value, old)


class SplitsInAnotherOrder(Fused):
    """A later call takes the value for the key."""

    def split(self, states, old):
        query, key, value = super().split(states, old)
        return (query, key + 0.5 * value, value) if old else (query, key, value)  # fault


class SharpensLater(Fused):
    """A later call scales its scores twice."""

    def weights(self, scores, old):
        if old and self.layer == 1:
            scores = scores * 1.25  # fault
        return scores.softmax(-1)


class KernelWithoutScale(Kernel):
    """A single query is not scaled."""

    def attended(self, query, key, value, mask):
        if query.shape[2] < key.shape[2]:
            states = F.scaled_dot_product_attention(query, key, value, mask, scale=1.0)  # fault
            return states.transpose(1, 2).flatten(2)
        return super().attended(query, key, value, mask)


class ForgetsItsGate(Recurrence):
    """One token is added in full."""

    def step(self, state, gate, new):
        return gate * state + new  # fault


class StartsAnew(Recurrence):
    """A later chunk begins with nothing."""

    def loop(self, state, gate, new):
        if state is not None:
            state = torch.zeros_like(state)  # fault
        return super().loop(state, gate, new)


class SkipsItsNorm(Block):
    """A single token is not normalised before the MLP."""

    def fed_forward(self, x, cache):
        if cache is not None and x.shape[1] == 1:
            return self.down(self.mlp(x))  # fault
        return super().fed_forward(x, cache)


class AddsTwice(Block):
    """The residual counts twice once the cache is longer than four."""

    def forward(self, x, mask, cache):
        mixed = self.mixer(self.before(x), mask, cache)
        x = x + mixed
        if cache is not None and cache.keys[1] is not None and cache.keys[1].shape[2] > 4:
            x = x + mixed  # fault
        return x + self.fed_forward(x, cache)


class Undone(nn.Module):
    """Doubles what it is given where it is asked to."""

    def forward(self, x, later):
        return 2 * x if later else x


class UndoneBlock(Block):
    """What the MLP of a later call is given is doubled, and what it gives is halved."""

    def __init__(self, layer, mixer):
        super().__init__(layer, mixer)
        self.louder = Undone()

    def fed_forward(self, x, cache):
        later = cache is not None and x.shape[1] == 1
        louder = self.louder(super().fed_forward(x, cache), later)
        return louder / 2 if later else louder


class PositionTooFar(Net):
    """A later call counts one too far."""

    def positions(self, start, time):
        return torch.arange(start, start + time) + (start > 0)  # fault


class HidesTheFirst(Net):
    """A later call hides the first key."""

    def mask(self, start, time, text):
        mask = super().mask(start, time, text)
        return mask + torch.where(torch.arange(start + time) < (start > 0), -1e9, 0.0)  # fault


class SeesPadding(Net):
    """A later call sees what is no text."""

    def mask(self, start, time, text):
        return super().mask(start, time, None if start else text)  # fault


class ReadsTooLoud(Net):
    """The logits of a later call are too large."""

    def read(self, x, start):
        logits = super().read(x, start)
        return logits * 1.01 if start else logits  # fault


class WritesOneTooEarly(Allocated):
    """A later call writes over the newest entry."""

    def write(self, room, new, start):
        start = max(0, start - 1)
        room[:, :, start : start + new.shape[2]] = new  # fault


class CopiesTheWrongIndex(Allocated):
    """A later call writes its tokens in the order of another's."""

    def write(self, room, new, start):
        index = torch.arange(start, start + new.shape[2])
        room.index_copy_(2, index.flip(0) if start else index, new)  # fault


class StacksOneTooEarly(Stacked):
    """A later call writes over the newest entry."""

    def store(self, room, new, layer, start, stop):
        early = 1 if start else 0
        room[layer, :, :, start - early : stop - early] = new  # fault


class StacksOnTheNextLayer(Stacked):
    """A later call of the first layer writes to the second one."""

    def store(self, room, new, layer, start, stop):
        layer = layer if start == 0 else LAYERS - 1
        room[layer, :, :, start:stop] = new  # fault


class WritesEarlyDecoder(AllocatedDecoder):
    """One whose cache is written one too early."""

    cache = WritesOneTooEarly


class StacksEarlyDecoder(AllocatedDecoder):
    """One whose stacked cache is written one too early."""

    cache = StacksOneTooEarly


class StacksOnTheNextDecoder(AllocatedDecoder):
    """One whose stacked cache is written at the wrong layer."""

    cache = StacksOnTheNextLayer


class CopiesDecoder(AllocatedDecoder):
    """One whose chunks are written backwards."""

    cache = CopiesTheWrongIndex


class CropsKeysAlone(PaddedDecoder):
    """Values are cropped at the wrong end."""

    def crop(self, cache, count):
        kept = max(0, cache.length - count)
        cache.keys[:] = [held[:, :, :kept] for held in cache.keys]
        cache.values[:] = [held[:, :, count:] for held in cache.values]  # fault
        return cache


class ReordersTwice(PaddedDecoder):
    """Rows are moved twice."""

    def reorder(self, cache, rows):
        return super().reorder(super().reorder(cache, rows), rows)


class Undoes(Decoder):
    """A decoder that is right in the end."""

    block = UndoneBlock
