"""Small decoders whose caches have room for all tokens from the start, and wrong ones."""

import torch
from torch import nn

VOCAB, WIDTH, ROOM, MOST_ROWS = 23, 8, 24, 6


class Attention(nn.Module):
    """One head, over the tokens in its own buffers, which outlive the calls."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.keys = torch.zeros(MOST_ROWS, ROOM, WIDTH)
        self.values = torch.zeros(MOST_ROWS, ROOM, WIDTH)

    def forward(self, x, begin, mask):
        rows, end = len(x), begin + x.shape[1]
        query, key, value = self.project(x).chunk(3, -1)
        self.keys, self.values = self.keys.to(key.dtype), self.values.to(value.dtype)
        self.keys[:rows, begin:end] = key
        self.values[:rows, begin:end] = value
        scores = query @ self.keys[:rows, :end].transpose(1, 2) + mask
        return self.out(scores.softmax(-1) @ self.values[:rows, :end])


class Buffered(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.read = nn.Linear(WIDTH, VOCAB)

    def mask(self, begin, count):
        square = torch.full((count, count), -torch.inf)
        square = torch.triu(square, 1)
        return torch.hstack([torch.zeros(count, begin), square])

    def forward(self, tokens, begin):
        count = tokens.shape[1]
        x = self.embed(tokens) + self.place(torch.arange(begin, begin + count))
        mask = self.mask(begin, count).to(x.dtype)
        for layer in self.layers:
            x = x + layer(x, begin, mask)
        return self.read(x)


class SeesAhead(Buffered):
    """A chunk on a filled cache sees its own later tokens."""

    def mask(self, begin, count):
        square = torch.full((count, count), -torch.inf)
        square = torch.triu(square, begin + 1)  # fault
        return torch.hstack([torch.zeros(count, begin), square])


class BufferedDecoder:
    """Its cache is a number: the buffers belong to the model, and a path without a cache puts them
    back."""

    vocab_size, max_length = VOCAB, ROOM
    model_type = Buffered

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = self.model_type().eval()

    @torch.no_grad()
    def uncached(self, tokens):
        kept = [(one.keys.clone(), one.values.clone()) for one in self.model.layers]
        logits = self.model(tokens, 0)
        for one, (keys, values) in zip(self.model.layers, kept, strict=True):
            one.keys.copy_(keys)
            one.values.copy_(values)
        return logits

    def new_cache(self, batch):
        return 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache + tokens.shape[1]


class SeesAheadDecoder(BufferedDecoder):
    model_type = SeesAhead


class EmptyDecoder(nn.Module):
    """One layer, and a cache that `allocate` makes without writing to it. The keys after the last
    one are cut off."""

    vocab_size, max_length = VOCAB, ROOM

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.project = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.read = nn.Linear(WIDTH, VOCAB)

    def allocate(self, batch):
        return torch.empty(batch, ROOM, WIDTH, dtype=self.read.weight.dtype)

    def attend(self, query, keys, values, begin):
        end = begin + query.shape[1]
        mask = torch.arange(end) > torch.arange(begin, end)[:, None]
        scores = (query @ keys[:, :end].mT).masked_fill(mask, -torch.inf)
        return scores.softmax(-1) @ values[:, :end]

    @torch.no_grad()
    def uncached(self, tokens):
        x = self.embed(tokens)
        return self.read(x + self.attend(*self.project(x).chunk(3, -1), 0))

    def new_cache(self, batch):
        return self.allocate(batch), self.allocate(batch), 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        keys, values, begin = cache
        x, end = self.embed(tokens), begin + tokens.shape[1]
        query, keys[:, begin:end], values[:, begin:end] = self.project(x).chunk(3, -1)
        return self.read(x + self.attend(query, keys, values, begin)), (keys, values, end)


class WhereDecoder(EmptyDecoder):
    """Reads the whole cache, and takes zeros for what is not written."""

    def attend(self, query, keys, values, begin):
        end = begin + query.shape[1]
        held = (torch.arange(keys.shape[1]) < end)[:, None]
        mask = torch.arange(keys.shape[1]) > torch.arange(begin, end)[:, None]
        keys, values = torch.where(held, keys, 0.0), torch.where(held, values, 0.0)
        scores = (query @ keys.mT).masked_fill(mask, -torch.inf)
        return scores.softmax(-1) @ values


class FilledDecoder(EmptyDecoder):
    """Fills its cache, and reads all of it."""

    def allocate(self, batch):
        return super().allocate(batch).zero_()

    def attend(self, query, keys, values, begin):
        mask = torch.arange(keys.shape[1]) > torch.arange(begin, begin + query.shape[1])[:, None]
        return (query @ keys.mT).masked_fill(mask, -torch.inf).softmax(-1) @ values


class ReadsAll(EmptyDecoder):
    """Reads the whole cache: zero times what was in memory."""

    def attend(self, query, keys, values, begin):
        mask = torch.arange(keys.shape[1]) > torch.arange(begin, begin + query.shape[1])[:, None]
        weights = (query @ keys.mT).masked_fill(mask, -torch.inf).softmax(-1)
        return weights @ values  # fault


class ReadsAllOfEmptyLike(ReadsAll):
    def allocate(self, batch):
        return torch.empty_like(self.read.weight.new_zeros(batch, ROOM, WIDTH))


class ReadsAllOfNewEmpty(ReadsAll):
    def allocate(self, batch):
        return self.read.weight.new_empty((batch, ROOM, WIDTH))


class ReadsAllOfEmptyStrided(ReadsAll):
    def allocate(self, batch):
        sizes, strides = (batch, ROOM, WIDTH), (ROOM * WIDTH, WIDTH, 1)
        return torch.empty_strided(sizes, strides, dtype=self.read.weight.dtype)


class CountsInEmpty(EmptyDecoder):
    """Keeps how many tokens each row has in memory that nothing has written to, and adds to it."""

    def new_cache(self, batch):
        return *super().new_cache(batch), torch.empty(batch, dtype=torch.int64)

    def cached(self, tokens, cache):
        *rest, count = cache
        logits, after = super().cached(tokens, rest)
        return logits + count.clamp(0, 1)[:, None, None], (*after, count)


class Turning(nn.Module):
    """Rotates keys by a complex table, from the wrong end if the imaginary part is `turned`."""

    vocab_size, max_length = VOCAB, ROOM

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.project = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.read = nn.Linear(WIDTH, VOCAB)
        angles = torch.outer(torch.arange(ROOM).double(), 0.5 ** torch.arange(WIDTH // 2))
        self.table = torch.polar(torch.ones_like(angles), angles)

    def turns(self, begin, end):
        return self.table[begin:end]

    def turned(self, x, turns):
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

    def run(self, tokens, past, begin):
        end = begin + tokens.shape[1]
        x = self.embed(tokens)
        query, key, value = self.project(x).chunk(3, -1)
        turns = self.turns(begin, end)
        query, key = self.turned(query, turns), self.turned(key, turns)
        if past is not None:
            key, value = torch.cat((past[0], key), 1), torch.cat((past[1], value), 1)
        mask = torch.arange(end) > torch.arange(begin, end)[:, None]
        weights = (query @ key.mT).masked_fill(mask, -torch.inf).softmax(-1)
        return self.read(x + weights @ value), ((key, value), end)

    @torch.no_grad()
    def uncached(self, tokens):
        return self.run(tokens, None, 0)[0]

    def new_cache(self, batch):
        return None, 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.run(tokens, *cache)


class ConjugatesLater(Turning):
    """Later calls rotate the other way: only the imaginary part of the table is wrong."""

    def turns(self, begin, end):
        return (self.table.conj() if begin else self.table)[begin:end]  # fault
