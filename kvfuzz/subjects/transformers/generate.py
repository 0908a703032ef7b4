"""Greedy and beam search by the library's own `generate`, with its cache and without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.caches import GENERATED
from kvfuzz.subjects.transformers.call import Call, encoder_output


def generated(
    model: Any,
    call: Call,
    tokens: Tensor,
    encoded: Tensor | None,
    length: int,
    beams: int,
    kind: str | None,
) -> tuple[Tensor, Tensor | None]:
    """The `length` tokens [batch, length] that `model` continues `tokens` [batch, n] with, and the
    logits [batch, length, vocab] that they were chosen by, None in releases that do not tell.

    `kind` is the cache that it uses, None for none at all. Of several `beams` it is the best one
    of each row, and its logits are those of the beam that each token came from. Raises
    NotImplementedError for a kind of cache that cannot be asked for.
    """
    if kind == "quantised":
        raise NotImplementedError("generate chooses a quantised cache's backend by itself")
    asked = _asked(model, tokens, length, beams, kind)
    prompt: dict[str, Any] = {call.tokens: tokens, **encoder_output(encoded)}
    if encoded is None:
        prompt["attention_mask"] = torch.ones_like(tokens)
    else:
        # Some releases put this before rows that do not begin with it.
        others = set(range(len(tokens) + 1)) - set(tokens[:, 0].tolist())
        prompt["decoder_start_token_id"] = min(others)
    with torch.no_grad():
        output = model.generate(**prompt, **asked)
    found = output.sequences[:, -length:]
    raw = output.get("logits") if "output_logits" in asked else None
    if raw is None:
        return found, None
    # Some releases hand out the logits with the end-of-sequence token ruled out in them.
    logits = torch.stack(raw, 1)
    return found, _of_rows(logits.masked_fill(logits.isinf(), 0), output, tokens.shape[0])


def _asked(model: Any, tokens: Tensor, length: int, beams: int, kind: str | None) -> dict[str, Any]:
    """The arguments of `generate` beside the prompt."""
    asked: dict[str, Any] = {
        "max_new_tokens": length,
        "min_length": tokens.shape[1] + length,  # no row ends early
        "do_sample": False,
        "num_beams": beams,
        "use_cache": kind is not None,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    if hasattr(getattr(model, "generation_config", None), "output_logits"):
        asked["output_logits"] = True
    if kind is not None and kind in GENERATED:
        asked["cache_implementation"] = GENERATED[kind]
    return asked


def _of_rows(logits: Tensor, output: Any, rows: int) -> Tensor:
    """Of `logits` [rows x beams, length, vocab], those of the beams that the tokens came from."""
    beams = output.get("beam_indices")
    if beams is None:
        return logits[:rows] if logits.shape[0] == rows else logits
    length = logits.shape[1]
    taken = beams[:, :length].clamp(min=0)
    return logits[taken, torch.arange(length, device=logits.device)]
