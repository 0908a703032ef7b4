"""A cache object with methods to update, crop and reorder it; rotation by pairs, a mask given."""

import torch
from torch import nn

LONGEST, WIDTH, HEADS = 24, 16, 2
SIZE = WIDTH // HEADS


class KeyValueCache:
    def __init__(self, layers):
        self.keys = [None] * layers
        self.values = [None] * layers

    def get_length(self):
        return 0 if self.keys[0] is None else self.keys[0].size(2)

    def update(self, layer, key, value):
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = key, value
        else:
            self.keys[layer] = torch.cat((self.keys[layer], key), dim=2)
            self.values[layer] = torch.cat((self.values[layer], value), dim=2)
        return self.keys[layer], self.values[layer]

    def crop(self, length):
        for layer in range(len(self.keys)):
            self.keys[layer] = self.keys[layer][:, :, :length]
            self.values[layer] = self.values[layer][:, :, :length]

    def reorder(self, rows):
        for layer, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            if key is not None:
                self.keys[layer] = key.index_select(0, rows)
                self.values[layer] = value.index_select(0, rows)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 100 ** (-torch.arange(SIZE // 2, dtype=torch.float64) / 4))

    def forward(self, x, positions):
        angles = positions[:, None].double() * self.rates.double()
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2)


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer_idx = layer
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.to_out, self.rotary = nn.Linear(WIDTH, WIDTH), Rotary()

    def heads(self, x):
        return x.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)

    def forward(self, x, mask, positions, cache):
        key, value = self.to_kv(x).chunk(2, dim=-1)
        query, key, value = self.heads(self.to_q(x)), self.heads(key), self.heads(value)
        query = self.rotary(query, positions)
        key = self.rotary(key, positions)
        if cache is not None:
            key, value = cache.update(self.layer_idx, key, value)
        similarity = query @ key.mT / SIZE**0.5
        similarity = similarity + mask
        attention = similarity.softmax(dim=-1)
        merged = (attention @ value).transpose(1, 2).flatten(2)
        return self.to_out(merged)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.attentions = nn.ModuleList([Attention(0), Attention(1)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH)) for _ in range(2)]
        )
        self.final, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32)

    def causal(self, past, time, dtype):
        rows = torch.arange(past, past + time)[:, None]
        columns = torch.arange(past + time)[None]
        mask = torch.zeros(time, past + time, dtype=dtype)
        return mask.masked_fill(columns > rows, float("-inf"))

    def forward(self, tokens, cache=None):
        past = cache.get_length() if cache is not None else 0
        time = tokens.shape[1]
        x = self.embed(tokens)
        mask = self.causal(past, time, x.dtype)
        positions = torch.arange(past, past + time)
        for number, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * number](x), mask, positions, cache)
            x = x + self.mlps[number](self.norms[2 * number + 1](x))
        return self.unembed(self.final(x))


class Decoder:
    vocab_size, max_length = 32, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return cache.get_length()

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        return KeyValueCache(2)

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache

    def crop(self, cache, count):
        cache.crop(max(0, cache.get_length() - count))
        return cache

    def reorder(self, cache, rows):
        cache.reorder(rows)
        return cache
