"""How the forward of a transformers model is called: what it takes beside tokens, by signature."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.source import CACHE_NAMES, first_of
from kvfuzz.subjects.transformers.tf_held import Held, holds_something


class NoCache(Exception):
    """The model handed back no cache."""


@dataclass(frozen=True, slots=True)
class Call:
    """The names of what a forward takes, None for what it does not take. `offset` is the position
    of the first token. `recurrent` tells that no layer keeps keys, so that a mask is about the new
    tokens alone; `kernel` is the width of the convolution of such a model."""

    tokens: str
    cache: str
    mask: str | None
    positions: str | None
    slots: str | None  # which slots the tokens take, in releases that ask for it
    offset: int = 0
    recurrent: bool = False
    kernel: int | None = None

    def uncached(
        self, model: Any, tokens: Tensor, encoded: Tensor | None = None, **more: Tensor
    ) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""
        given = {self.tokens: tokens, **encoder_output(encoded), **more}
        logits: Tensor = model(**given, use_cache=False).logits
        return logits

    def cached(
        self,
        model: Any,
        tokens: Tensor,
        held: Held,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        place: bool = False,
    ) -> tuple[Tensor, Held]:
        """Logits [batch, n, vocab] for `tokens` [batch, n] alone, and the cache afterwards. With
        `place` the model is told which slots they take, where it can be. Raises NoCache."""
        given: dict[str, Any] = {self.tokens: tokens, self.cache: held.own}
        given |= self._mask(mask, held, tokens) | encoder_output(held.encoded)
        if positions is not None and self.positions is not None:
            given[self.positions] = positions + self.offset
        if self.slots is not None and (place or (self.kernel and held.own is not None)):
            given[self.slots] = self._slots(held, tokens)
        output = model(**given, use_cache=True)
        name = first_of(CACHE_NAMES, [n for n in CACHE_NAMES if output.get(n) is not None])
        # Some hand nothing back, and write into what they were given.
        own = held.own if name is None else output[name]
        if own is None or (name is None and not holds_something(own)):
            raise NoCache(f"returned no cache: its output holds {', '.join(output)}")
        fed = tokens.shape[1]
        after = replace(held, own=own, slots=held.slots + fed, fresh=held.fresh + fed)
        return output.logits, after

    def _mask(self, mask: Tensor | None, held: Held, tokens: Tensor) -> dict[str, Tensor]:
        """The mask as `generate` gives it: 1 for text, over all slots."""
        if mask is None or self.mask is None:
            return {}
        if self.recurrent and held.slots:
            # Of what a state has taken in already nothing can be masked any more, and these models
            # want no mask at all where nothing of the new is padding.
            mask = mask[:, -tokens.shape[1] :]
            return {} if bool(mask.all()) else {self.mask: mask.long()}
        return {self.mask: mask.long()}

    def _slots(self, held: Held, tokens: Tensor) -> Tensor:
        if self.kernel and not held.slots:
            # To a state-space model this is no position: as many as the kernel is wide tell it
            # that the state is empty.
            return torch.arange(self.kernel, device=tokens.device)
        return torch.arange(held.slots, held.slots + tokens.shape[1], device=tokens.device)


def call_of(model: Any) -> Call:
    """How the forward of `model` is called."""
    there = inspect.signature(type(model).forward).parameters
    before = "decoder_" if model.config.is_encoder_decoder else ""
    cache = first_of(CACHE_NAMES, there)
    return Call(
        tokens=before + "input_ids",
        cache=cache or CACHE_NAMES[0],
        mask=first_of([before + "attention_mask"], there),
        positions=first_of([before + "position_ids"], there),
        slots=first_of(["cache_position"], there),
        offset=_offset(model),
        kernel=getattr(model.config, "conv_kernel", None) if cache == "cache_params" else None,
    )


def _offset(model: Any) -> int:
    """The position that `model` gives to the first token: one past that of padding, where padding
    has a place in the table of positions."""
    for owner in model.modules():
        table = getattr(owner, "position_embeddings", None)
        padding = getattr(owner, "padding_idx", None)
        plain = isinstance(table, torch.nn.Embedding) and table.padding_idx is not None
        if plain and isinstance(padding, int):
            return padding + 1
    return 0


def encoder_output(encoded: Tensor | None) -> dict[str, Any]:
    """What the decoder of an encoder-decoder model is given of its encoder."""
    if encoded is None:
        return {}
    from transformers.modeling_outputs import BaseModelOutput

    return {"encoder_outputs": BaseModelOutput(last_hidden_state=encoded)}
