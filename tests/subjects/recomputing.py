"""A decoder whose cache is the tokens themselves: it can do anything, and is easy to get wrong."""

import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

VOCAB = 50


@dataclass
class TokenCache:
    """The tokens fed so far [batch, slots], and which of them are text."""

    tokens: torch.Tensor
    text: torch.Tensor


class Recomputes:
    """Logits of a row of tokens are those of a decayed sum of embeddings, with learned positions.
    The cached path runs over all that its cache holds again."""

    vocab_size = VOCAB
    max_length = 48
    positions_from_mask = True

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(VOCAB, 12, generator=generator)
        self.place = torch.randn(self.max_length, 12, generator=generator)

    def uncached(self, tokens):
        return self._logits(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape))

    def _logits(self, tokens, positions, text=None):
        x = self.embedding[tokens] + self.place[positions]
        if text is not None:
            x = x * text[..., None]
        state, states = torch.zeros_like(x[:, 0]), []
        for column in range(x.shape[1]):
            decay = 0.7 if text is None else torch.where(text[:, column, None], 0.7, 1.0)
            state = state * decay + x[:, column]
            states.append(state)
        return F.layer_norm(torch.stack(states, 1), (12,)) @ self.embedding.T

    def new_cache(self, batch):
        return TokenCache(torch.zeros(batch, 0).long(), torch.zeros(batch, 0).bool())

    def cached(self, tokens, cache, *, mask=None, positions=None):
        held = torch.cat((cache.tokens, tokens), 1)
        text = torch.cat((cache.text, torch.ones_like(tokens).bool()), 1) if mask is None else mask
        places = (text.cumsum(1) - 1).clamp(min=0)
        if positions is not None:
            places[:, -tokens.shape[1] :] = positions
        logits = self._logits(held, places, text)
        return logits[:, -tokens.shape[1] :], TokenCache(held, text)

    def crop(self, cache, count):
        kept = max(0, cache.tokens.shape[1] - count)
        return TokenCache(cache.tokens[:, :kept], cache.text[:, :kept])

    def reorder(self, cache, rows):
        return TokenCache(cache.tokens[rows], cache.text[rows])

    def copy(self, cache):
        return copy.deepcopy(cache)

    def save(self, cache):
        return {"tokens": cache.tokens, "text": cache.text}

    def load(self, state):
        return TokenCache(**state)

    def reset(self, cache):
        return replace(cache, tokens=cache.tokens[:, :0], text=cache.text[:, :0])
