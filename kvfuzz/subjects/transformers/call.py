"""Calls the forward of a transformers model, with the arguments that its signature names."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.caches import CacheState, holds_something
from kvfuzz.subjects.transformers.source import CACHE_NAMES, first_present


class NoCache(Exception):
    """The model handed back no cache."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The names of the arguments of a model's forward, None for what it does not take.

    `slots` names the argument for the slots that the tokens take, in releases that ask for it,
    `keep` the one for the number of last positions whose logits are computed.
    `offset` is the position of the first token. `recurrent` says that no layer keeps keys, so that
    a mask covers the new tokens alone; `kernel` is the width of the convolution of such a model.
    """

    tokens: str
    cache: str
    mask: str | None
    positions: str | None
    slots: str | None
    keep: str | None = None
    offset: int = 0
    recurrent: bool = False
    kernel: int | None = None

    def uncached(
        self, model: Any, tokens: Tensor, encoded: Tensor | None = None, **more: Tensor
    ) -> Tensor:
        """Returns logits [batch, time, vocab] for all of `tokens` [batch, time], without a
        cache."""
        given = {self.tokens: tokens, **encoder_argument(encoded), **more}
        logits: Tensor = model(**given, use_cache=False).logits
        return _for_each_token(logits, tokens)

    def cached(
        self,
        model: Any,
        tokens: Tensor,
        state: CacheState,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        give_slots: bool = False,
        **more: int,
    ) -> tuple[Tensor, CacheState]:
        """Returns logits [batch, n, vocab] for `tokens` [batch, n] alone, and the cache afterwards.
        With `give_slots` the model is given the slots of the tokens, if it takes them. Raises
        NoCache."""
        given: dict[str, Any] = {self.tokens: tokens, self.cache: state.own, **more}
        given |= self._mask(mask, state, tokens) | encoder_argument(state.encoded)
        if positions is not None and self.positions is not None:
            given[self.positions] = positions + self.offset
        if self.slots is not None and (give_slots or (self.kernel and state.own is not None)):
            given[self.slots] = self._slots(state, tokens)
        output = model(**given, use_cache=True)
        name = first_present(CACHE_NAMES, [n for n in CACHE_NAMES if output.get(n) is not None])
        # Some models hand nothing back, and write into the cache that they were given.
        own = state.own if name is None else output[name]
        if own is None or (name is None and not holds_something(own)):
            raise NoCache(f"returned no cache: its output holds {', '.join(output)}")
        fed = tokens.shape[1]
        after = replace(state, own=own, slots=state.slots + fed, fresh=state.fresh + fed)
        # How many logits come back of those that were asked for is judged by who asked.
        logits = output.logits if self.keep in more else _for_each_token(output.logits, tokens)
        return logits, after

    def _mask(self, mask: Tensor | None, state: CacheState, tokens: Tensor) -> dict[str, Tensor]:
        """The mask as `generate` gives it: 1 for text, over all slots."""
        if mask is None or self.mask is None:
            return {}
        if self.recurrent and state.slots:
            # What a state has absorbed can no longer be masked, and these models take no mask at
            # all where none of the new tokens is padding.
            mask = mask[:, -tokens.shape[1] :]
            return {} if bool(mask.all()) else {self.mask: mask.long()}
        return {self.mask: mask.long()}

    def _slots(self, state: CacheState, tokens: Tensor) -> Tensor:
        if self.kernel and not state.slots:
            # A state-space model does not read these as positions: their number, the width of its
            # kernel, tells it that the state is empty.
            return torch.arange(self.kernel, device=tokens.device)
        return torch.arange(state.slots, state.slots + tokens.shape[1], device=tokens.device)


def _for_each_token(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns `logits` if they are [batch, time, vocab] for `tokens` [batch, time]. Raises
    RuntimeError if not: kvfuzz called the model as its library does, so that is the model's fault,
    and a path that raises alone diverges."""
    if logits.shape[:-1] != tokens.shape:
        raise RuntimeError(
            f"the model returned logits of shape {tuple(logits.shape)} for tokens of shape "
            f"{tuple(tokens.shape)} [batch, time]"
        )
    return logits


def forward_of(model: Any) -> Forward:
    """Reads the signature of the forward of `model`."""
    there = inspect.signature(type(model).forward).parameters
    before = "decoder_" if model.config.is_encoder_decoder else ""
    cache = first_present(CACHE_NAMES, there)
    return Forward(
        tokens=before + "input_ids",
        cache=cache or CACHE_NAMES[0],
        mask=first_present([before + "attention_mask"], there),
        positions=first_present([before + "position_ids"], there),
        slots=first_present(["cache_position"], there),
        keep=first_present(["logits_to_keep", "num_logits_to_keep"], there),
        offset=_offset(model),
        kernel=getattr(model.config, "conv_kernel", None) if cache == "cache_params" else None,
    )


def _offset(model: Any) -> int:
    """The position that `model` gives to the first token: one past that of padding, where padding
    has an entry in the table of positions."""
    for owner in model.modules():
        table = getattr(owner, "position_embeddings", None)
        padding = getattr(owner, "padding_idx", None)
        plain = isinstance(table, torch.nn.Embedding) and table.padding_idx is not None
        if plain and isinstance(padding, int):
            return padding + 1
    return 0


# Encoder output. No encoder runs: its output is drawn. The first token of a row chooses it, so that
# rows differ, and a row keeps its own wherever it is moved.

ENCODER_PLACES = 5
"""The length of an encoder's output."""


def blank_encoding(model: Any, rows: int) -> Tensor | None:
    """Returns zeros [rows, places, width] if `model` has an encoder, else None."""
    if not model.config.is_encoder_decoder:
        return None
    parameter = next(model.parameters())
    shape = (rows, ENCODER_PLACES, model.config.hidden_size)
    return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)


def draw_encodings(model: Any, vocab_size: int, seed: int) -> Tensor | None:
    """Draws the encoder output for each token that a row may begin with: [vocab, places, width];
    None for a model without an encoder."""
    like = blank_encoding(model, vocab_size)
    if like is None:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def choose_encodings(table: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Returns the entries of `table` for rows that begin with `tokens` [rows, n]."""
    return None if table is None else table[tokens[:, 0]]


def begin(
    state: CacheState, table: Tensor | None, tokens: Tensor, mask: Tensor | None
) -> CacheState:
    """Returns `state` with the encoder output of its rows, chosen by the first of `tokens` [rows,
    n] that `mask` [rows, n] says are text. Raises NotImplementedError if a row holds none yet."""
    if table is None or state.encoded is not None:
        return state
    text = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    if not bool(text.any(-1).all()):
        raise NotImplementedError("a row that is all padding has no encoder output yet")
    first = text.long().argmax(-1)
    encoded = table[tokens.gather(1, first[:, None])[:, 0]]
    return replace(state, encoded=encoded, begun=int(first.max()) + 1)


def encoder_argument(encoded: Tensor | None) -> dict[str, Any]:
    """The argument that gives the decoder its encoder output; none for a decoder-only model."""
    if encoded is None:
        return {}
    from transformers.modeling_outputs import BaseModelOutput

    return {"encoder_outputs": BaseModelOutput(last_hidden_state=encoded)}
