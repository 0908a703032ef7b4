"""Keys and values of each token in Python lists, stacked when they are read; heads in groups."""

import torch
from torch import nn

LONGEST, WIDTH, HEADS, GROUPS, SIZE = 24, 16, 4, 2, 4


class GroupedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.kv_proj = nn.Linear(WIDTH, 2 * GROUPS * SIZE, bias=False)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x, history, positions):
        rows, time, _ = x.shape
        query = self.q_proj(x).reshape(rows, time, GROUPS, HEADS // GROUPS, SIZE)
        both = self.kv_proj(x).reshape(rows, time, 2, GROUPS, SIZE)
        key, value = both[:, :, 0], both[:, :, 1]
        for at in range(time):
            history.append((key[:, at], value[:, at]))
        keys = torch.stack([one for one, _ in history], dim=1)
        values = torch.stack([other for _, other in history], dim=1)
        scores = torch.einsum("btgrd,bsgd->bgrts", query, keys) * SIZE**-0.5
        distance = positions[:, None] - torch.arange(len(history))
        scores = scores - 0.25 * distance
        scores = torch.where(distance >= 0, scores, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.einsum("bgrts,bsgd->btgrd", weights, values)
        return self.o_proj(mixed.reshape(rows, time, HEADS * SIZE))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = GroupedAttention()
        self.input_norm = nn.RMSNorm(WIDTH)
        self.mlp_norm = nn.RMSNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x, history, positions):
        residual = x
        x = self.input_norm(x)
        x = self.self_attn(x, history, positions)
        x = residual + x
        residual = x
        x = self.mlp_norm(x)
        x = self.fc2(torch.tanh(self.fc1(x)))
        return residual + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(35, WIDTH)
        self.layers = nn.ModuleList([DecoderLayer(), DecoderLayer()])
        self.norm = nn.RMSNorm(WIDTH)
        self.scale = WIDTH**0.5

    def forward(self, tokens, histories):
        past = len(histories[0])
        positions = torch.arange(past, past + tokens.shape[1])
        x = self.embed_tokens(tokens) * self.scale
        for layer, history in zip(self.layers, histories, strict=True):
            x = layer(x, history, positions)
        x = self.norm(x)
        return x @ self.embed_tokens.weight.T


class Decoder:
    vocab_size, max_length = 35, LONGEST

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return len(cache[0])

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens, self.new_cache(len(tokens)))

    def new_cache(self, batch):
        return [[], []]

    @torch.no_grad()
    def cached(self, tokens, cache):
        return self.model(tokens, cache), cache

    def copy(self, cache):
        return [list(history) for history in cache]

    def crop(self, cache, count):
        return [history[: max(0, len(history) - count)] for history in cache]
