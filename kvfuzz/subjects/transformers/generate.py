"""Runs the library's own `generate`, greedy or beam search, with its cache or without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvfuzz.subjects.transformers.cache_kinds import GENERATED
from kvfuzz.subjects.transformers.call import Forward, encoder_argument


def generate(
    model: Any,
    forward: Forward,
    tokens: Tensor,
    encoded: Tensor | None,
    length: int,
    beams: int,
    kind: str | None,
) -> tuple[Tensor, Tensor | None]:
    """Returns the `length` tokens [batch, length] by which `model` continues `tokens` [batch, n],
    and the logits [batch, length, vocab] that chose them, None in releases that do not return them.

    `kind` is the cache to use, None for none. With several `beams` these are the tokens of each
    row's best beam, and each token's logits are those of the beam that it came from. Raises
    NotImplementedError for a kind of cache that `generate` cannot be asked for.
    """
    if kind == "quantised":
        raise NotImplementedError("generate chooses a quantised cache's backend by itself")
    arguments = _arguments(model, tokens, length, beams, kind)
    prompt: dict[str, Any] = {forward.tokens: tokens, **encoder_argument(encoded)}
    if encoded is None:
        prompt["attention_mask"] = torch.ones_like(tokens)
    else:
        # Some releases prepend this token to rows that do not begin with it.
        others = set(range(len(tokens) + 1)) - set(tokens[:, 0].tolist())
        prompt["decoder_start_token_id"] = min(others)
    with torch.no_grad():
        output = model.generate(**prompt, **arguments)
    found = output.sequences[:, -length:]
    raw = output.get("logits") if "output_logits" in arguments else None
    if raw is None:
        return found, None
    # Some releases return logits in which the end-of-sequence token is already -inf.
    logits = torch.stack(raw, 1)
    return found, _follow_beams(logits.masked_fill(logits.isinf(), 0), output, tokens.shape[0])


def _arguments(
    model: Any, tokens: Tensor, length: int, beams: int, kind: str | None
) -> dict[str, Any]:
    """The arguments of `generate` other than the prompt."""
    arguments: dict[str, Any] = {
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
        arguments["output_logits"] = True
    if kind is not None and kind in GENERATED:
        arguments["cache_implementation"] = GENERATED[kind]
    return arguments


def _follow_beams(logits: Tensor, output: Any, rows: int) -> Tensor:
    """Picks from `logits` [rows x beams, length, vocab] those of the beams that the tokens came
    from."""
    beams = output.get("beam_indices")
    if beams is None:
        return logits[:rows] if logits.shape[0] == rows else logits
    length = logits.shape[1]
    taken = beams[:, :length].clamp(min=0)
    return logits[taken, torch.arange(length, device=logits.device)]
