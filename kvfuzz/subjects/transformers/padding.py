"""Finds out how a transformers model treats padding: from its table lookups, not its logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvfuzz.subjects.transformers.call import Forward

_ROWS, _LENGTH, _PADS = 2, 6, 2


@dataclass(frozen=True, slots=True)
class Padding:
    """How a model treats padding.

    `offered`: it can have padding. `from_mask`: it computes positions from the mask, so they need
    not be given. `leading`: only padding before all text is free, because the model counts the
    slots between two tokens, whatever they hold. `window` is the narrowest of its windows, which
    count slots too.
    """

    offered: bool
    from_mask: bool = False
    leading: bool = False
    window: int | None = None

    def refuse(self, mask: Tensor) -> None:
        """Raises NotImplementedError if the model cannot have the padding of `mask` [batch,
        slots]."""
        before, after = mask.cumsum(-1) > 0, mask.flip(-1).cumsum(-1).flip(-1) > 0
        if not bool((before & ~mask & after).any()):
            return
        if self.leading:
            raise NotImplementedError(
                "this model counts the padding between two tokens as distance"
            )
        if self.window is not None and mask.shape[1] > self.window:
            raise NotImplementedError("a window of this model counts the padding inside it")


def find_padding(
    model: Any, forward: Forward, encoded: Tensor | None, window: int | None
) -> Padding:
    """Finds out how `model` treats padding; `encoded` is the output of its encoder, if it has
    one."""
    if forward.mask is None:
        return Padding(offered=False)
    plain, padded = (_watch(model, forward, encoded, pads) for pads in (0, _PADS))
    logits = [one.logits for one in (plain, padded) if one.logits is not None]
    if len(logits) == 2 and torch.equal(*logits):
        return Padding(offered=False)  # the mask is taken, and ignored
    by_mask = not plain.same(padded) or _biases_from_mask(model)
    if forward.positions is not None:
        return Padding(True, by_mask, _is_relative(model), window)
    if (plain.position_indices or plain.positional) and not by_mask:
        return Padding(offered=False)  # the first slot is position 0, padding or not
    return Padding(True, True, not (by_mask or forward.recurrent), window)


@dataclass
class _WatchedPass:
    """A pass over a model: the `indices` that it looked up in tables, the `positional` outputs of
    its modules for positions, and its logits."""

    indices: list[Tensor]
    positional: list[Tensor]
    logits: Tensor | None = None

    @property
    def position_indices(self) -> list[int]:
        """The places in `indices` of those that count up, as positions do."""
        return [at for at, index in enumerate(self.indices) if _counts_up(index)]

    def same(self, other: _WatchedPass) -> bool:
        """Whether the tokens of another pass had the same positions as those of this one."""
        pairs = list(zip(self.positional, other.positional, strict=False))
        if len(self.indices) == len(other.indices):
            pairs += [(self.indices[at], other.indices[at]) for at in self.position_indices]
        return all(torch.equal(one, two) for one, two in pairs)


class _Lookups(TorchFunctionMode):
    """Records the indices of every table lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.indices: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (F.embedding, torch.embedding, torch.index_select, Tensor.index_select):
            found = [a for a in args if isinstance(a, Tensor) and not a.is_floating_point()]
            self.indices += [index.detach().clone() for index in found]
        return func(*args, **(kwargs or {}))


def _watch(model: Any, forward: Forward, encoded: Tensor | None, pads: int) -> _WatchedPass:
    """Runs rows of which the first begins with `pads` padding. Returns nothing if that raises: the
    cases will show it."""
    tokens = torch.ones(_ROWS, _LENGTH, dtype=torch.int64, device=model.device)
    mask = torch.ones_like(tokens)
    mask[0, :pads] = 0
    lookups, positional = _Lookups(), list[Tensor]()

    def note(_module: Any, _given: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            positional.append(out.detach().clone())

    named = [m for m in model.modules() if "position" in type(m).__name__.lower()]
    hooks = [module.register_forward_hook(note) for module in named]
    assert forward.mask is not None
    try:
        with torch.no_grad(), lookups:
            logits = forward.uncached(model, tokens, encoded, **{forward.mask: mask})
    except Exception:
        return _WatchedPass([], [])
    finally:
        for hook in hooks:
            hook.remove()
    return _WatchedPass(lookups.indices, positional, logits)


def _counts_up(index: Tensor) -> bool:
    """Whether `index` holds one position after another."""
    if index.numel() not in (_LENGTH, _ROWS * _LENGTH):
        return False
    return bool((index.reshape(-1, _LENGTH).long().diff(dim=-1) == 1).all())


def _biases_from_mask(model: Any) -> bool:
    """Whether the model makes its ALiBi biases from the mask: a function for them, in its file or
    in one of its modules, takes one."""
    if getattr(model.config, "alibi", True) is False:
        return False
    places = [vars(inspect.getmodule(type(model))), *(vars(type(m)) for m in model.modules())]
    makers = [f for place in places for name, f in place.items() if "alibi" in name]
    return any(
        "attention_mask" in inspect.signature(maker).parameters
        for maker in makers
        if inspect.isfunction(maker)
    )


def _is_relative(model: Any) -> bool:
    """Whether a model that takes positions also adds a bias by the distance of two slots."""
    kind = getattr(model.config, "position_embedding_type", None)
    return isinstance(kind, str) and kind.startswith("relative")
