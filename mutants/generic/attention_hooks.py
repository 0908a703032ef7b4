"""Makes generic mutants of attention, where a torch model takes its softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mutants.generic.mutant import GenericMutant, generic_mutant
from mutants.generic.wrapper import Call

Change = Callable[[Tensor], Tensor]
SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax)
MASKED = -1e6
"""Below this, a score is a mask that was added."""
LACKS = "no softmax over cached entries is taken with torch"


def attention(
    after: bool = False, **declared: Any
) -> Callable[[Callable[[Tensor], Tensor]], GenericMutant]:
    """Makes a mutant of a function that takes the scores [..., queries, keys] before a softmax and
    returns others; those of masked keys are very low. With `after` it takes the probabilities."""

    def decorated(fault: Callable[[Tensor], Tensor]) -> GenericMutant:
        def intercept(call: Call) -> Any:
            def change(values: Tensor) -> Tensor:
                # Contiguous, since a kernel may not accept an expanded view.
                changed = fault(values).contiguous()
                if declared.get("placebo") or not torch.equal(changed, values):
                    call.reached()
                return changed

            new = call.args[0].shape[1]
            with SoftmaxMode(change, after, new, call.record.slots + new):
                return call.go()

        fields = {"lacks": LACKS, "advice": "feed a filled cache: two calls or more", **declared}
        return generic_mutant(fault, ("cached",), intercept, **fields)

    return decorated


class SoftmaxMode(TorchFunctionMode):
    """Applies `change` before or `after` each softmax of `new` queries over keys. It computes fused
    attention step by step for that. A softmax without a fourth axis counts only if it has as many
    keys as `slots`, since a router has a softmax too."""

    def __init__(self, change: Change, after: bool, new: int, slots: int) -> None:
        super().__init__()
        self._change, self._after, self._new, self._slots = change, after, new, slots

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return self._unfused(*args, **kwargs)
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

    def _unfused(
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
        """Computes scaled_dot_product_attention as torch documents it, with the change in it."""
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
        # A query that sees no key, such as padding, gets zeros.
        shares = scores.softmax(-1).nan_to_num(0.0)
        return (self._change(shares) if self._after else shares) @ value


def seen(scores: Tensor) -> Tensor:
    """Returns which keys are not masked [..., queries, keys], from scores with an additive mask."""
    return scores > max(torch.finfo(scores.dtype).min / 8, MASKED)
