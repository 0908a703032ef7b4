"""Faults in the attention of whatever computes with torch: where its softmax is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mutants.generic.mutant import GenericMutant, made
from mutants.generic.wrapper import Call

Change = Callable[[Tensor], Tensor]
SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
MASKED = -1e6
"""What lies below is no score, but a mask that was added."""
LACKS = "no softmax over cached entries is taken with torch"


def attention(
    after: bool = False, **told: Any
) -> Callable[[Callable[[Tensor], Tensor]], GenericMutant]:
    """The decorated function takes the scores [..., queries, keys] that a softmax is taken of,
    those of masked keys very low, and gives them otherwise; `after` the probabilities."""

    def decorated(fault: Callable[[Tensor], Tensor]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            def change(values: Tensor) -> Tensor:
                # Laid out as what it stands for: a view of one row's is none of all rows.
                changed = fault(values).contiguous()
                if told.get("placebo") or not torch.equal(changed, values):
                    call.reached()
                return changed

            new = call.args[0].shape[1]
            with _Watching(change, after, new, call.record.slots + new):
                return call.go()

        told_all = {"lacks": LACKS, "advice": "feed a filled cache: two calls or more", **told}
        return made(fault, ("cached",), intercept, **told_all)

    return decorated


class _Watching(TorchFunctionMode):
    """Inside, `change` is put before or `after` each softmax of `new` queries over keys. A call of
    the fused attention is taken apart for that. Without a fourth axis the keys have to be as many
    as the `slots`: a router has a softmax too."""

    def __init__(self, change: Change, after: bool, new: int, slots: int) -> None:
        super().__init__()
        self._change, self._after, self._new, self._slots = change, after, new, slots

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return self._taken_apart(*args, **kwargs)
        if func not in SOFTMAX:
            return func(*args, **kwargs)
        scores, *rest = args or (kwargs.pop("input"),)
        if self._is_attention(scores, rest, kwargs):
            if self._after:
                return self._change(func(scores, *rest, **kwargs))
            scores = self._change(scores)
        return func(scores, *rest, **kwargs)

    def _is_attention(self, scores: Tensor, rest: Any, kwargs: dict[str, Any]) -> bool:
        axis = kwargs.get("dim", rest[0] if rest else None)
        last = isinstance(axis, int) and axis % scores.dim() == scores.dim() - 1
        queries = scores.dim() >= 3 and scores.shape[-2] == self._new
        return last and queries and (scores.dim() == 4 or scores.shape[-1] == self._slots)

    def _taken_apart(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As torch documents scaled_dot_product_attention, with the change in it."""
        if enable_gqa:
            key, value = (
                part.repeat_interleave(query.shape[-3] // part.shape[-3], -3)
                for part in (key, value)
            )
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.mT * scale
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        if not self._after:
            scores = self._change(scores)
        # A query that sees nothing, as padding does, gets nothing.
        shares = scores.softmax(-1).nan_to_num(0.0)
        return (self._change(shares) if self._after else shares) @ value


def seen(scores: Tensor) -> Tensor:
    """Which keys are not masked [..., queries, keys], by scores as an additive mask leaves them."""
    return scores > max(torch.finfo(scores.dtype).min / 8, MASKED)
