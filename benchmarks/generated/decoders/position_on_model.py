"""The position stands on the model, keys and values in tuples; one norm after each part."""

import torch
from torch import nn
from torch.nn import functional

LONGEST, WIDTH, HEADS, GROUPS = 24, 16, 4, 2
SIZE = WIDTH // HEADS


def compute_tables():
    rates = 1.0 / (10000.0 ** (torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE))
    angles = torch.arange(LONGEST, dtype=torch.float64)[:, None] * rates[None, :]
    angles = torch.cat([angles, angles], dim=1)
    return torch.cos(angles), torch.sin(angles)


def apply_tables(x, cos, sin, offset=0):
    time = x.shape[2]
    first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    cos = cos[offset : offset + time].to(x.dtype)
    sin = sin[offset : offset + time].to(x.dtype)
    rotated = torch.cat((-second, first), dim=-1)
    return (x * cos) + (rotated * sin)


class GroupedQueryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.W_key = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.W_value = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(SIZE), nn.RMSNorm(SIZE)

    def forward(self, x, mask, cos, sin, start=0, cache=None):
        rows, time, _ = x.shape
        queries = self.W_query(x).view(rows, time, HEADS, SIZE).transpose(1, 2)
        keys = self.W_key(x).view(rows, time, GROUPS, SIZE).transpose(1, 2)
        values = self.W_value(x).view(rows, time, GROUPS, SIZE).transpose(1, 2)
        queries = self.q_norm(queries)
        keys = self.k_norm(keys)
        queries = apply_tables(queries, cos, sin, offset=start)
        keys = apply_tables(keys, cos, sin, offset=start)
        if cache is not None:
            keys = torch.cat([cache[0], keys], dim=2)
            values = torch.cat([cache[1], values], dim=2)
        next_cache = (keys, values)
        keys = keys.repeat_interleave(HEADS // GROUPS, dim=1)
        values = values.repeat_interleave(HEADS // GROUPS, dim=1)
        scores = queries @ keys.transpose(2, 3)
        scores = scores.masked_fill(mask, -torch.inf)
        weights = torch.softmax(scores / SIZE**0.5, dim=-1)
        context = (weights @ values).transpose(1, 2).reshape(rows, time, HEADS * SIZE)
        return self.out_proj(context), next_cache


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.att = GroupedQueryAttention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.fc3 = nn.Linear(24, WIDTH)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x, mask, cos, sin, start, cache):
        shortcut = x
        x, next_cache = self.att(x, mask, cos, sin, start=start, cache=cache)
        x = shortcut + self.norm1(x)
        shortcut = x
        x = self.fc3(functional.silu(self.fc1(x)) * self.fc2(x))
        return shortcut + self.norm2(x), next_cache


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_emb = nn.Embedding(30, WIDTH)
        self.trf_blocks = nn.ModuleList([Block(), Block()])
        self.final_norm = nn.RMSNorm(WIDTH)
        self.out_head = nn.Linear(WIDTH, 30, bias=False)
        self.cos, self.sin = compute_tables()
        self.current_pos = 0

    def forward(self, tokens, cache=None):
        x = self.tok_emb(tokens)
        time = x.shape[1]
        if cache is not None:
            start = self.current_pos
            end = start + time
            self.current_pos = end
            mask = torch.triu(torch.ones(end, end, dtype=torch.bool), diagonal=1)
            mask = mask[start:end, :end]
        else:
            start = 0
            mask = torch.triu(torch.ones(time, time, dtype=torch.bool), diagonal=1)
        mask = mask[None, None]
        for number, block in enumerate(self.trf_blocks):
            held = cache[number] if cache else None
            x, kept = block(x, mask, self.cos, self.sin, start, held)
            if cache is not None:
                cache[number] = kept
        return self.out_head(self.final_norm(x))


class Decoder:
    vocab_size, max_length, one_cache_at_a_time = 30, LONGEST, True

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return 0 if cache[0] is None else self.model.current_pos

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens)

    def new_cache(self, batch):
        self.model.current_pos = 0
        return [None, None]

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache
