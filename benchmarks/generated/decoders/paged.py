"""A pool of pages for all rows, which tables map to positions; rotation by halves."""

import torch
from torch import nn

LONGEST, WIDTH, HEADS, PAGE = 24, 16, 2, 4
SIZE = WIDTH // HEADS


def half_turned(x):
    left, right = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-right, left), dim=-1)


def rotated(x, cos, sin):
    return x * cos + half_turned(x) * sin


class Pool:
    """Pages [pages, PAGE, HEADS, SIZE] of the keys and the values of one layer."""

    def __init__(self, batch):
        count = batch * (LONGEST // PAGE)
        self.keys = torch.zeros(count, PAGE, HEADS, SIZE)
        self.values = torch.zeros(count, PAGE, HEADS, SIZE)

    def write(self, pages, offsets, key, value):
        self.keys, self.values = self.keys.to(key.dtype), self.values.to(value.dtype)
        self.keys[pages, offsets] = key
        self.values[pages, offsets] = value

    def read(self, table, length):
        keys = self.keys[table].flatten(1, 2)[:, :length]
        values = self.values[table].flatten(1, 2)[:, :length]
        return keys, values


class Paged:
    def __init__(self, batch):
        self.pools = [Pool(batch), Pool(batch)]
        each = LONGEST // PAGE
        self.table = torch.arange(batch)[:, None] + torch.arange(each)[None, :] * batch
        self.length = 0

    def slots(self, time):
        positions = torch.arange(self.length, self.length + time)
        pages = self.table[:, positions // PAGE]
        offsets = (positions % PAGE).expand_as(pages)
        return pages, offsets


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layer_idx = number
        self.norm, self.post_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 24),
            nn.Linear(WIDTH, 24),
            nn.Linear(24, WIDTH),
        )

    def forward(self, x, cos, sin, cache, slots):
        rows, time, _ = x.shape
        states = self.norm(x)
        query = self.q(states).view(rows, time, HEADS, SIZE)
        key = self.k(states).view(rows, time, HEADS, SIZE)
        value = self.v(states).view(rows, time, HEADS, SIZE)
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        past = 0
        if cache is not None:
            past = cache.length
            pool = cache.pools[self.layer_idx]
            pool.write(*slots, key, value)
            key, value = pool.read(cache.table, past + time)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / SIZE**0.5
        hidden = torch.ones(time, past + time, dtype=torch.bool).triu(past + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2)
        x = x + self.o(mixed)
        states = self.post_norm(x)
        return x + self.down(nn.functional.silu(self.gate(states)) * self.up(states))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(41, WIDTH)
        self.layers = nn.ModuleList([Layer(0), Layer(1)])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 41, bias=False)
        self.register_buffer("inverse", 1.0 / 1000 ** (torch.arange(0, SIZE, 2) / SIZE))

    def tables(self, start, time, dtype):
        positions = torch.arange(start, start + time, dtype=torch.float64)
        angles = torch.outer(positions, self.inverse.double())
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, tokens, cache=None):
        time = tokens.shape[1]
        start = 0 if cache is None else cache.length
        x = self.embed(tokens)
        cos, sin = self.tables(start, time, x.dtype)
        slots = None if cache is None else cache.slots(time)
        for layer in self.layers:
            x = layer(x, cos, sin, cache, slots)
        if cache is not None:
            cache.length += time
        return self.head(self.norm(x))


class Decoder:
    vocab_size, max_length = 41, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return cache.length

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return Paged(batch)

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache

    def crop(self, cache, count):
        cache.length = max(0, cache.length - count)
        return cache
