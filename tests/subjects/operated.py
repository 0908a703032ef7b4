"""Small decoders whose caches are rings or pools, or are wrong after an operation on them."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, ROOM, HEADS, WINDOW = 23, 8, 24, 2, 4


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Windowed(nn.Module):
    """Attention over the last four tokens. The cache is a ring of keys and values: each new token
    takes the slot of the oldest."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, ring, begin):
        count = x.shape[1]
        query, key, value = (heads(part) for part in self.project(x).chunk(3, -1))
        at = torch.arange(begin, begin + count)
        held = at
        if ring is not None:
            key, value, held = self.kept(ring, key, value, at)
        far = at[:, None] - held
        mask = (far >= 0) & (far < WINDOW) & (held >= 0)
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(read.transpose(1, 2).flatten(2))

    def kept(self, ring, key, value, at):
        """Attends to what was held before and to the new tokens, and then writes these."""
        keys, values, held = ring
        read = torch.cat((keys, key), 2), torch.cat((values, value), 2), torch.cat((held, at))
        last = at[-WINDOW:]
        keys.index_copy_(2, last % WINDOW, key[:, :, -WINDOW:])
        values.index_copy_(2, last % WINDOW, value[:, :, -WINDOW:])
        held.index_copy_(0, last % WINDOW, last)
        return read


class WritesFirst(Windowed):
    """Writes a chunk into the ring before its first tokens have attended to what was there."""

    def kept(self, ring, key, value, at):
        keys, values, held = ring
        at = at[-WINDOW:]
        held.index_copy_(0, at % WINDOW, at)
        keys.index_copy_(2, at % WINDOW, key[:, :, -WINDOW:])  # fault
        values.index_copy_(2, at % WINDOW, value[:, :, -WINDOW:])
        full = int((held >= 0).sum())
        return keys[:, :, :full], values[:, :, :full], held[:full]


class RingDecoder(nn.Module):
    """Two layers without a residual connection of their own."""

    vocab_size, max_length = VOCAB, ROOM
    mixer = Windowed

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.read = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.place = nn.Embedding(ROOM, WIDTH)
        self.layers = nn.ModuleList([self.mixer(), self.mixer()])

    def run(self, tokens, rings, begin):
        x = self.embed(tokens) + self.place(torch.arange(begin, begin + tokens.shape[1]))
        for layer, ring in zip(self.layers, rings, strict=True):
            x = x + layer(x, ring, begin)
        return self.read(x)

    @torch.no_grad()
    def uncached(self, tokens):
        return self.run(tokens, (None, None), 0)

    def new_cache(self, batch):
        like = self.read.weight
        empty = like.new_zeros(batch, HEADS, WINDOW, WIDTH // HEADS)
        return [(empty.clone(), empty.clone(), torch.full((WINDOW,), -99)) for _ in "ab"], 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        rings, begin = cache
        return self.run(tokens, rings, begin), (rings, begin + tokens.shape[1])


class WritesFirstDecoder(RingDecoder):
    mixer = WritesFirst


class Summing(nn.Module):
    """A recurrence: each token adds to half of the state."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, state):
        into, states = self.into(x), []
        for number in range(x.shape[1]):
            state = state / 2 + into[:, number]
            states.append(state)
        return self.out(torch.stack(states, 1)), state


class PoolDecoder(nn.Module):
    """The states of all rows are cells of a pool, and the cache of a row is the number of its cell.
    A saved state comes back into free cells."""

    vocab_size, max_length, cells = VOCAB, ROOM, 16

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.read = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList([Summing(), Summing()])
        self.pool = [torch.zeros(self.cells, WIDTH) for _ in self.layers]
        self.free = 0

    def take(self, count):
        self.free += count
        return [number % self.cells for number in range(self.free - count, self.free)]

    def run(self, tokens, states):
        x, after = self.embed(tokens), []
        for layer, state in zip(self.layers, states, strict=True):
            more, state = layer(x, state)
            x, after = x + more, [*after, state]
        return self.read(x), after

    @torch.no_grad()
    def uncached(self, tokens):
        return self.run(tokens, [self.read.weight.new_zeros(len(tokens), WIDTH)] * 2)[0]

    def new_cache(self, batch):
        cells = self.take(batch)
        for states in self.pool:
            states[cells] = 0
        return cells

    @torch.no_grad()
    def cached(self, tokens, cache):
        logits, after = self.run(
            tokens, [states[cache].to(self.read.weight) for states in self.pool]
        )
        for states, new in zip(self.pool, after, strict=True):
            states[cache] = new.to(states)
        return logits, cache

    def save(self, cache):
        return cache, [states[cache].tolist() for states in self.pool]

    def load(self, saved):
        old, contents = saved
        cells = self.take(len(old))
        for states, content in zip(self.pool, contents, strict=True):
            states[cells] = torch.tensor(content).to(states)
        return cells


class LoadsIntoTheOldCells(PoolDecoder):
    """What was saved goes back where it was, and not where the cache says."""

    def load(self, saved):
        old, contents = saved
        cells = self.take(len(old))
        for states, content in zip(self.pool, contents, strict=True):
            states[cells] = 0
            states[old] = torch.tensor(content).to(states)  # fault
        return cells


class Joining(nn.Module):
    """Attention over all tokens; what is held is joined with what is new."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, held, begin):
        query, key, value = (heads(part) for part in self.project(x).chunk(3, -1))
        key = torch.cat((held[0][:, :, :begin], key), 2)
        value = torch.cat((held[1][:, :, :begin], value), 2)
        at = torch.arange(begin, begin + x.shape[1])
        mask = torch.arange(begin + x.shape[1]) <= at[:, None]
        weights = (query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2)), (key, value)


class CountedDecoder(nn.Module):
    """Its cache is keys and values, and how many of them count: a crop changes that number."""

    vocab_size, max_length = VOCAB, ROOM
    mixer = Joining

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.read = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.place = nn.Embedding(ROOM, WIDTH)
        self.layers = nn.ModuleList([self.mixer(), self.mixer()])

    def run(self, tokens, held, begin):
        x = self.embed(tokens) + self.place(torch.arange(begin, begin + tokens.shape[1]))
        after = []
        for layer, states in zip(self.layers, held, strict=True):
            more, states = layer(x, states, begin)
            x, after = x + more, [*after, states]
        return self.read(x), after

    @torch.no_grad()
    def uncached(self, tokens):
        return self.run(tokens, *self.new_cache(len(tokens)))[0]

    def new_cache(self, batch):
        nothing = self.read.weight.new_zeros(batch, HEADS, 0, WIDTH // HEADS)
        return [(nothing, nothing)] * 2, 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        held, begin = cache
        logits, held = self.run(tokens, held, begin)
        return logits, (held, begin + tokens.shape[1])

    def crop(self, cache, count):
        held, begin = cache
        return held, max(0, begin - count)


class CropsOneTooFew(CountedDecoder):
    def crop(self, cache, count):
        held, begin = cache
        return held, max(0, begin - count + 1)


class NarrowsLater(Joining):
    """Later calls give the queries another length: nothing that an operation has left."""

    def forward(self, x, held, begin):
        return super().forward(x * 0.99 if begin else x, held, begin)


class NarrowsLaterDecoder(CountedDecoder):
    mixer = NarrowsLater


def mix(query, key, value, mask):
    weights = (query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1)
    return weights @ value


class CallsHelper(nn.Module):
    """Attention in a helper, which a later call calls on a line of its own."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, held, begin):
        query, key, value = (heads(part) for part in self.project(x).chunk(3, -1))
        key = torch.cat((held[0][:, :, :begin], key), 2)
        value = torch.cat((held[1][:, :, :begin], value), 2)
        at = torch.arange(begin, begin + x.shape[1])
        mask = torch.arange(begin + x.shape[1]) <= at[:, None]
        read = self.later(query, key, value, mask) if begin else mix(query, key, value, mask)
        return self.out(read.transpose(1, 2).flatten(2)), (key, value)

    def later(self, query, key, value, mask):
        return mix(query, key, value, mask)


class SwapsArguments(CallsHelper):
    def later(self, query, key, value, mask):
        return mix(query, value, key, mask)  # fault


class CallsHelperDecoder(CountedDecoder):
    mixer = CallsHelper


class SwapsArgumentsDecoder(CountedDecoder):
    mixer = SwapsArguments
