"""A small decoder that offers much, and variations of its design that hide faults."""

import copy
import math

import torch
from torch import nn

WIDTH, VOCAB, LONGEST = 16, 23, 24


class Root(nn.Module):
    """Divides by the root of the mean of squares; without gain and epsilon if `gain` is `exact`."""

    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(WIDTH) + 0.5 if gain is True else torch.ones(WIDTH))
        self.epsilon = 0.0 if gain == "exact" else 1e-6

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.gain


class Mixing(nn.Module):
    """Attention with `heads` heads of keys, rotated if `place` is `rotary`, or `sharper` with every
    eighth position; with a bias by the distance of slots if it is `recent`, and a window of eight
    if it is `window`."""

    def __init__(self, layer, heads, place, bias):
        super().__init__()
        self.layer, self.heads, self.place = layer, heads, place
        sizes = (WIDTH, WIDTH, WIDTH, WIDTH)
        self.a, self.b, self.c, self.d = (nn.Linear(n, WIDTH, bias=bias != "none") for n in sizes)
        if bias == "zero":
            for one in (self.a, self.b, self.c, self.d):
                nn.init.zeros_(one.bias)

    def forward(self, x, positions, cache):
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.a, self.b, self.c)
        )
        if self.place in ("rotary", "sharper"):
            query, key = turned(query, positions), turned(key, positions)
        if cache is not None:
            key, value = cache.joined(self.layer, key, value)
        slots = torch.arange(key.shape[2])
        distance = slots[-x.shape[1] :, None] - slots
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if self.place == "recent":
            scores = scores - 0.5 * distance
        if self.place == "sharper":
            scores = scores * (1 + positions[:, None, :, None] // 8)
        if self.place == "window":
            scores = scores.masked_fill(distance >= 8, -math.inf)
        shares = scores.masked_fill(distance < 0, -math.inf).softmax(-1)
        return self.d((shares @ value).transpose(1, 2).flatten(2))


def turned(x, positions):
    """Rotary positions: pairs of features turned by the position."""
    angles = positions[:, None, :, None].to(x.dtype) * torch.tensor([1.0, 0.3], dtype=x.dtype)
    angles = angles[..., : x.shape[-1] // 2].repeat(1, 1, 1, x.shape[-1] // 2 // 2)
    one, other = x.chunk(2, -1)
    return torch.cat(
        (one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()), -1
    )


class Layer(nn.Module):
    """What mixes positions, and a projection."""

    def __init__(self, layer, heads, place, gain, bias):
        super().__init__()
        self.first, self.second = Root(gain), Root(gain)
        self.mix = Mixing(layer, heads, place, bias)
        self.feed = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, positions, cache):
        x = x + self.mix(self.first(x), positions, cache)
        return x + torch.tanh(self.feed(self.second(x)))


class Joined:
    """Keys and values of each layer, joined along the axis of time."""

    def __init__(self, layers):
        self.pairs = [None] * layers

    @property
    def length(self):
        return 0 if self.pairs[-1] is None else self.pairs[-1][0].shape[2]

    def joined(self, layer, key, value):
        if self.pairs[layer] is not None:
            old_key, old_value = self.pairs[layer]
            key, value = torch.cat((old_key, key), 2), torch.cat((old_value, value), 2)
        self.pairs[layer] = key, value
        return key, value

    def change(self, by):
        self.pairs = [None if pair is None else tuple(map(by, pair)) for pair in self.pairs]
        return self


class Small(nn.Module):
    """The model: no name in it tells what it is."""

    def __init__(self, layers, heads, place, gain, bias):
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.where = nn.Embedding(LONGEST + 4, WIDTH) if place == "learned" else None
        self.stack = nn.ModuleList(Layer(n, heads, place, gain, bias) for n in range(layers))
        self.end = Root(gain)
        self.out = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, positions, cache=None):
        x = self.table(tokens)
        if self.where is not None:
            x = x + self.where(positions)
        for layer in self.stack:
            x = layer(x, positions, cache)
        return self.out(self.end(x))


class Offering:
    """A decoder that offers positions, and all that can be done to a cache of joined tensors."""

    vocab_size, max_length = VOCAB, LONGEST

    def __init__(self, seed=0, layers=2, heads=2, place="learned", gain=True, bias="some"):
        torch.manual_seed(seed)
        self.model, self.layers = Small(layers, heads, place, gain, bias).eval(), layers

    def uncached(self, tokens):
        return self.model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens))

    def new_cache(self, batch):
        return Joined(self.layers)

    def cached(self, tokens, cache, *, positions=None):
        if positions is None:
            start = cache.length
            positions = torch.arange(start, start + tokens.shape[1]).expand_as(tokens)
        return self.model(tokens, positions, cache), cache

    def crop(self, cache, count):
        kept = max(0, cache.length - count)
        return cache.change(lambda part: part[:, :, :kept])

    def reorder(self, cache, rows):
        return cache.change(lambda part: part[rows])

    def copy(self, cache):
        return copy.deepcopy(cache)

    def save(self, cache):
        return cache

    def load(self, state):
        return state

    def reset(self, cache):
        return cache.change(lambda part: part[:, :, :0])

    def view(self, cache):
        return list(cache.pairs)


class Salted(Offering):
    """One whose cached path is wrong on purpose with one of its settings."""

    choices = {"salt": (False, True)}

    def __init__(self, seed=0, salt=False):
        super().__init__(seed)
        self.salt = salt

    def cached(self, tokens, cache, *, positions=None):
        logits, cache = super().cached(tokens, cache, positions=positions)
        return logits + int(self.salt), cache


class Uncropped(Offering):
    """One that cannot crop."""

    crop = None


class Refusing(Offering):
    """One that crops no more than one slot."""

    def crop(self, cache, count):
        if count > 1:
            raise NotImplementedError("more than one slot")
        return super().crop(cache, count)


class Slots:
    """A decoder whose calls write into the buffer of their cache, behind what it holds."""

    vocab_size, max_length = VOCAB, LONGEST

    def __init__(self, seed=0):
        random = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB, WIDTH, generator=random)

    def uncached(self, tokens):
        return self.table[tokens].cumsum(1) @ self.table.T

    def new_cache(self, batch):
        return torch.zeros(batch, LONGEST, WIDTH), 0

    def cached(self, tokens, cache):
        buffer, held = cache
        after = held + tokens.shape[1]
        buffer[:, held:after] = self.table[tokens]
        return buffer[:, :after].cumsum(1)[:, held:] @ self.table.T, (buffer, after)

    def copy(self, cache):
        return cache[0].clone(), cache[1]


class Bare:
    """One layer of attention with two heads on plain tensors: no torch module is in it."""

    vocab_size, max_length = VOCAB, None

    def __init__(self, seed=0):
        random = torch.Generator().manual_seed(seed)
        self.table, self.out = torch.randn(2, VOCAB, WIDTH, generator=random)
        self.q, self.k, self.v = torch.randn(3, WIDTH, WIDTH, generator=random) / 4

    def new_cache(self, batch):
        return [torch.zeros(batch, 2, 0, WIDTH // 2)] * 2

    def uncached(self, tokens):
        return self.cached(tokens, self.new_cache(len(tokens)))[0]

    def cached(self, tokens, cache):
        x = self.table[tokens]
        query, *new = (
            (x @ weight).unflatten(-1, (2, -1)).transpose(1, 2)
            for weight in (self.q, self.k, self.v)
        )
        key, value = (torch.cat(pair, 2) for pair in zip(cache, new, strict=True))
        late = torch.ones(query.shape[2], key.shape[2]).triu(key.shape[2] - query.shape[2] + 1)
        scores = (query @ key.mT / 3).masked_fill(late.bool(), -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return (x + mixed) @ self.out.T, [key, value]

    def view(self, cache):
        return [tuple(cache)]
