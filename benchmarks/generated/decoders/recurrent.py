"""A gated recurrence, computed for all tokens by cumulative products and for one by a step."""

import torch
from torch import nn

WIDTH, INNER = 12, 16


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.gate = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.decay, self.out = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def scan(self, decay, values, state):
        logs = torch.cumsum(torch.log(decay), dim=1)
        weights = torch.exp(logs[:, :, None] - logs[:, None])
        index = torch.arange(decay.shape[1])
        seen = (index[:, None] >= index[None, :])[None, :, :, None]
        mixed = torch.where(seen, weights, 0.0) * values[:, None]
        states = mixed.sum(dim=2)
        if state is not None:
            states = states + torch.exp(logs) * state[:, None]
        return states

    def forward(self, x, state):
        decay = torch.sigmoid(self.decay(x)) * 0.5 + 0.5
        values = (1 - decay) * self.into(x)
        if state is not None and x.shape[1] == 1:
            state = decay[:, 0] * state + values[:, 0]
            states = state.unsqueeze(1)
        else:
            states = self.scan(decay, values, state)
            state = states[:, -1]
        gated = states * nn.functional.silu(self.gate(x))
        return self.out(gated), state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(WIDTH), Recurrence()

    def forward(self, x, state):
        mixed, state = self.mixer(self.norm(x), state)
        return x + mixed, state


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(27, WIDTH)
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 27)

    def forward(self, tokens, states):
        x = self.embedding(tokens)
        kept = []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer(x, state)
            kept.append(state)
        return self.head(self.norm(x)), kept


class Decoder:
    vocab_size, max_length = 27, None

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = Model().eval()

    def length(self, cache):
        return cache[1]

    @torch.no_grad()
    def uncached(self, tokens):
        return self.model(tokens, [None] * 3)[0]

    def new_cache(self, batch):
        return [None] * 3, 0

    @torch.no_grad()
    def cached(self, tokens, cache):
        states, seen = cache
        logits, states = self.model(tokens, states)
        return logits, (states, seen + tokens.shape[1])
