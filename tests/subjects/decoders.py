"""Small decoders of many layouts, as people write them; `faulty_decoders` has wrong ones."""

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, VOCAB, LONGEST, LAYERS, HEADS = 16, 29, 40, 2, 4


class Grown:
    """A cache of keys and values of each layer that are joined along the axis of time."""

    def __init__(self, axis=2):
        self.axis, self.keys, self.values = axis, [None] * LAYERS, [None] * LAYERS
        self.text = None

    @property
    def length(self):
        return 0 if self.keys[-1] is None else self.keys[-1].shape[self.axis]

    def update(self, layer, key, value):
        if self.keys[layer] is not None:
            key = torch.cat((self.keys[layer], key), self.axis)
            value = torch.cat((self.values[layer], value), self.axis)
        self.keys[layer], self.values[layer] = key, value
        return key, value


class Norm(nn.Module):
    """Divides by the root of the mean of squares."""

    def __init__(self):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.rand(WIDTH) + 0.5), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Grouped(nn.Module):
    """Heads in groups, [batch, heads, time, dim], and the softmax written out."""

    groups = 2

    def __init__(self, layer):
        super().__init__()
        self.layer, self.size = layer, WIDTH // HEADS
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, self.groups * self.size)
        self.value = nn.Linear(WIDTH, self.groups * self.size)

    def forward(self, x, mask, cache):
        query, key, value = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        old = 0
        if cache is not None:
            old = cache.keys[self.layer].shape[2] if cache.keys[self.layer] is not None else 0
            key, value = self.stored(cache, key, value, old)
        return self.out(self.attended(query, self.shared(key, old), self.shared(value, old), mask))

    def stored(self, cache, key, value, old):
        return cache.update(self.layer, key, value)

    def shared(self, states, old):
        return states.repeat_interleave(HEADS // self.groups, 1)

    def attended(self, query, key, value, mask):
        scores = query @ key.transpose(2, 3) / math.sqrt(self.size)
        weights = torch.softmax(scores + mask, -1)
        return (weights @ value).transpose(1, 2).flatten(2)


class Fused(nn.Module):
    """One projection for all three, [time, batch, width], heads and rows on one axis, and a mask
    that a single token does without."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.size = layer, WIDTH // HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask, cache):
        time, batch, _ = x.shape
        old = 0 if cache is None or cache.keys[self.layer] is None else 1
        query, key, value = (
            part.reshape(time, batch * HEADS, self.size).transpose(0, 1)
            for part in self.split(self.qkv(x), old)
        )
        if cache is not None:
            key, value = cache.update(self.layer, key, value)
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(self.size)
        if time > 1:
            scores = scores + mask
        weights = self.weights(scores, old)
        return self.out(torch.bmm(weights, value).transpose(0, 1).reshape(time, batch, WIDTH))

    def split(self, states, old):
        return states.chunk(3, -1)

    def weights(self, scores, old):
        return scores.softmax(-1)


class Kernel(Grouped):
    """The same by torch's own kernel."""

    def attended(self, query, key, value, mask):
        states = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return states.transpose(1, 2).flatten(2)


class Recurrence(nn.Module):
    """A gated sum over time by a loop, and a branch of its own for one token."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.gate, self.into = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask, cache):
        gate, new = self.gate(x).sigmoid(), self.into(x)
        state = None if cache is None else cache.keys[self.layer]
        if state is not None and x.shape[1] == 1:
            state = self.step(state[:, 0], gate[:, 0], new[:, 0])
            states = state[:, None]
        else:
            states = self.loop(state, gate, new)
        if cache is not None:
            cache.keys[self.layer] = states[:, -1:]
        return self.out(states)

    def step(self, state, gate, new):
        return gate * state + (1 - gate) * new

    def loop(self, state, gate, new):
        state, states = torch.zeros_like(new[:, 0]) if state is None else state[:, 0], []
        for time in range(new.shape[1]):
            state = gate[:, time] * state + (1 - gate[:, time]) * new[:, time]
            states.append(state)
        return torch.stack(states, 1)


class Block(nn.Module):
    """A layer: what mixes tokens, and then an MLP."""

    def __init__(self, layer, mixer):
        super().__init__()
        self.before, self.mixer, self.after = Norm(), mixer(layer), Norm()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 8))
        self.down = nn.Linear(8, WIDTH)

    def forward(self, x, mask, cache):
        x = x + self.mixer(self.before(x), mask, cache)
        return x + self.fed_forward(x, cache)

    def fed_forward(self, x, cache):
        return self.down(self.mlp(self.after(x)))


class Net(nn.Module):
    """Learned positions, two layers, a norm, and the embedding as its readout."""

    mixer, block, time_first = Grouped, Block, False

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.keep([self.block(n, self.mixer) for n in range(LAYERS)])
        self.norm = Norm()

    def keep(self, layers):
        self.layers = nn.ModuleList(layers)

    def in_order(self):
        return self.layers

    def forward(self, tokens, cache=None, text=None, positions=None):
        start, time = (0 if cache is None else cache.length), tokens.shape[1]
        if positions is None:
            positions = self.positions(start, time)
        x = self.token(tokens) + self.place(positions)
        mask = self.mask(start, time, text).to(x.dtype)
        if self.time_first:
            x, mask = x.transpose(0, 1), mask[0, 0]
        for layer in self.in_order():
            x = layer(x, mask, cache)
        x = x.transpose(0, 1) if self.time_first else x
        return self.read(self.norm(x), start)

    def positions(self, start, time):
        return torch.arange(start, start + time)

    def mask(self, start, time, text):
        """What hides the keys [batch or 1, 1, time, slots] that a token may not see."""
        index = torch.arange(start + time)
        seen = (index[None] <= index[start:, None])[None]
        if text is not None:
            seen = seen & text[:, None]
        return torch.where(seen, 0.0, -1e9)[:, None]

    def read(self, x, start):
        return F.linear(x, self.token.weight)


class KeyedNet(Net):
    """Its layers have keys."""

    def keep(self, layers):
        self.layers = nn.ModuleDict(zip(("lower", "upper"), layers, strict=True))

    def in_order(self):
        return self.layers.values()


class SideBySideNet(Net):
    """Its layers are attributes."""

    def keep(self, layers):
        self.lower, self.upper = layers

    def in_order(self):
        return self.lower, self.upper


class Decoder:
    """A net behind the protocol, with a cache that grows."""

    vocab_size, max_length = VOCAB, LONGEST
    net, mixer, block, axis = Net, Grouped, Block, 2

    def __init__(self, seed=0):
        time_first = issubclass(self.mixer, Fused)
        parts = {"mixer": self.mixer, "block": self.block, "time_first": time_first}
        made = type(self.net.__name__, (self.net,), {**parts, "__module__": __name__})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = made().eval()

    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return Grown(self.axis)

    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache


def decoder(**parts):
    """A kind of decoder made of these `parts`, and whose `name` it has."""
    cls = parts.get("block") or parts.get("mixer") or parts.get("net") or Decoder
    parts = {"axis": 1 if issubclass(parts.get("mixer", Grouped), Fused) else 2, **parts}
    return type(f"{cls.__name__}Decoder", (Decoder,), parts)


class RecurrentDecoder(Decoder):
    """Its layers keep a sum, and the cache counts the tokens."""

    mixer = Recurrence

    def new_cache(self, batch):
        return Counted()

    def cached(self, tokens, cache):
        logits = self.model(tokens, cache)
        cache.length += tokens.shape[1]
        return logits, cache


class Counted(Grown):
    """A cache that counts what it was fed."""

    length = 0


class Allocated(Grown):
    """Room for the longest row, which is written into by index."""

    def __init__(self, batch):
        super().__init__()
        shape = batch, Grouped.groups, LONGEST, WIDTH // HEADS
        self.room = [[torch.zeros(shape) for _ in range(2)] for _ in range(LAYERS)]
        self.filled = [0] * LAYERS

    @property
    def length(self):
        return self.filled[-1]

    def update(self, layer, key, value):
        start = self.filled[layer]
        self.filled[layer] = start + key.shape[2]
        keys, values = self.room[layer]
        self.write(keys, key, start)
        self.write(values, value, start)
        # What is asked for its shape in the next call.
        self.keys[layer] = keys[:, :, : self.filled[layer]]
        return self.keys[layer], values[:, :, : self.filled[layer]]

    def write(self, room, new, start):
        room[:, :, start : start + new.shape[2]] = new


class Stacked(Allocated):
    """Room for all layers in one tensor each for keys and values."""

    def __init__(self, batch):
        super().__init__(batch)
        shape = LAYERS, batch, Grouped.groups, LONGEST, WIDTH // HEADS
        self.room = torch.zeros(shape), torch.zeros(shape)

    def update(self, layer, key, value):
        start = self.filled[layer]
        stop = self.filled[layer] = start + key.shape[2]
        keys, values = self.room
        self.store(keys, key, layer, start, stop)
        self.store(values, value, layer, start, stop)
        self.keys[layer] = keys[layer, :, :, :stop]
        return self.keys[layer], values[layer, :, :, :stop]

    def store(self, room, new, layer, start, stop):
        room[layer, :, :, start:stop] = new


class InOneTensor(Stacked):
    """Room for keys and values of all layers in one tensor."""

    def __init__(self, batch):
        super().__init__(batch)
        self.room = torch.stack(self.room).unbind()


class AllocatedDecoder(Decoder):
    """A decoder with room for all from the beginning."""

    cache = Allocated

    def new_cache(self, batch):
        return self.cache(batch)


class StackedDecoder(AllocatedDecoder):
    """One with room for all layers in one tensor."""

    cache = Stacked


class InOneTensorDecoder(AllocatedDecoder):
    """One with room for keys and values of all layers in one tensor."""

    cache = InOneTensor


class PaddedDecoder(Decoder):
    """A decoder that takes padding, crops and reorders."""

    positions_from_mask = True

    def cached(self, tokens, cache, *, mask=None, positions=None):
        if positions is None and mask is not None:
            places = (mask.cumsum(1) - 1).clamp(min=0)
            positions = places[:, -tokens.shape[1] :]
        return self.model(tokens, cache, mask, positions), cache

    def crop(self, cache, count):
        kept = max(0, cache.length - count)
        for states in (cache.keys, cache.values):
            states[:] = [held[:, :, :kept] for held in states]
        return cache

    def reorder(self, cache, rows):
        for states in (cache.keys, cache.values):
            states[:] = [held[rows] for held in states]
        return cache
