"""What the decoder of an encoder-decoder model attends to: drawn, since no encoder is run.

A row's is chosen by its first token, so that rows differ, and a row keeps its own wherever it goes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.tf_held import Held

PLACES = 5
"""How many places of an encoder there are."""


def blank(model: Any, rows: int) -> Tensor | None:
    """Nought [rows, places, width] where `model` has an encoder, else None."""
    if not model.config.is_encoder_decoder:
        return None
    parameter = next(model.parameters())
    shape = (rows, PLACES, model.config.hidden_size)
    return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)


def drawn(model: Any, vocab_size: int, seed: int) -> Tensor | None:
    """For each token that a row may begin with, what its encoder said: [vocab, places, width];
    None for a model without an encoder."""
    like = blank(model, vocab_size)
    if like is None:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def chosen(table: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Of `table`, what the rows that begin with `tokens` [rows, n] attend to."""
    return None if table is None else table[tokens[:, 0]]


def begun(held: Held, table: Tensor | None, tokens: Tensor, mask: Tensor | None) -> Held:
    """`held` with what its rows attend to, chosen by the first of `tokens` [rows, n] that `mask`
    [rows, n] says are text. Raises NotImplementedError if a row holds none yet."""
    if table is None or held.encoded is not None:
        return held
    text = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    if not bool(text.any(-1).all()):
        raise NotImplementedError("a row that is all padding has no encoder output yet")
    first = text.long().argmax(-1)
    encoded = table[tokens.gather(1, first[:, None])[:, 0]]
    return replace(held, encoded=encoded, begun=int(first.max()) + 1)
