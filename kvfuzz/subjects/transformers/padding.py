"""What padding means to a transformers model: read off what it looks up, not off its logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvfuzz.subjects.transformers.call import Call

_ROWS, _LENGTH, _PADS = 2, 6, 2


@dataclass(frozen=True, slots=True)
class Padding:
    """Whether a model can have padding at all (`offered`), and tells positions by the mask
    (`from_mask`) so that they need not be given. `leading` tells that only padding before all text
    is free: the model counts the slots between two tokens, whatever they hold. `window` is the
    narrowest of its windows, which count slots too."""

    offered: bool
    from_mask: bool = False
    leading: bool = False
    window: int | None = None

    def refuse(self, mask: Tensor) -> None:
        """Raise NotImplementedError if the model cannot have what `mask` [batch, slots] says."""
        before, after = mask.cumsum(-1) > 0, mask.flip(-1).cumsum(-1).flip(-1) > 0
        if not bool((before & ~mask & after).any()):
            return
        if self.leading:
            raise NotImplementedError(
                "this model counts the padding between two tokens as distance"
            )
        if self.window is not None and mask.shape[1] > self.window:
            raise NotImplementedError("a window of this model counts the padding inside it")


def padding_of(model: Any, call: Call, encoded: Tensor | None, window: int | None) -> Padding:
    """What padding means to `model`; `encoded` is what its decoder is given of its encoder."""
    if call.mask is None:
        return Padding(offered=False)
    plain, padded = (_watched(model, call, encoded, pads) for pads in (0, _PADS))
    logits = [one.logits for one in (plain, padded) if one.logits is not None]
    if len(logits) == 2 and torch.equal(*logits):
        return Padding(offered=False)  # taken, and used for nothing
    by_mask = not plain.same(padded) or _slopes_by_mask(model)
    if call.positions is not None:
        return Padding(True, by_mask, _by_distance(model), window)
    if (plain.places or plain.said) and not by_mask:
        return Padding(offered=False)  # the first slot is position 0, padding or not
    return Padding(True, True, not (by_mask or call.recurrent), window)


@dataclass
class _Watched:
    """A pass: the `indices` that it looked up in tables, what its modules for positions `said`, and
    its logits."""

    indices: list[Tensor]
    said: list[Tensor]
    logits: Tensor | None = None

    @property
    def places(self) -> list[int]:
        """Which of the indices count up, as positions do."""
        return [at for at, index in enumerate(self.indices) if _counts_up(index)]

    def same(self, other: _Watched) -> bool:
        """Whether the tokens of another pass stood where those of this one did."""
        pairs = list(zip(self.said, other.said, strict=False))
        if len(self.indices) == len(other.indices):
            pairs += [(self.indices[at], other.indices[at]) for at in self.places]
        return all(torch.equal(one, two) for one, two in pairs)


class _Lookups(TorchFunctionMode):
    """Notes the indices of whatever is looked up in a table."""

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


def _watched(model: Any, call: Call, encoded: Tensor | None, pads: int) -> _Watched:
    """A pass over rows of which the first has `pads` leading padding; nothing if it raises, which
    the cases will show."""
    tokens = torch.ones(_ROWS, _LENGTH, dtype=torch.int64, device=model.device)
    mask = torch.ones_like(tokens)
    mask[0, :pads] = 0
    lookups, said = _Lookups(), list[Tensor]()

    def note(_module: Any, _given: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            said.append(out.detach().clone())

    named = [m for m in model.modules() if "position" in type(m).__name__.lower()]
    hooks = [module.register_forward_hook(note) for module in named]
    assert call.mask is not None
    try:
        with torch.no_grad(), lookups:
            logits = call.uncached(model, tokens, encoded, **{call.mask: mask})
    except Exception:
        return _Watched([], [])
    finally:
        for hook in hooks:
            hook.remove()
    return _Watched(lookups.indices, said, logits)


def _counts_up(index: Tensor) -> bool:
    """Whether `index` holds one position after another."""
    if index.numel() not in (_LENGTH, _ROWS * _LENGTH):
        return False
    return bool((index.reshape(-1, _LENGTH).long().diff(dim=-1) == 1).all())


def _slopes_by_mask(model: Any) -> bool:
    """Whether the model's biases by distance are made from the mask, as a function that takes one
    tells, in its file or of one of its modules."""
    if getattr(model.config, "alibi", True) is False:
        return False
    places = [vars(inspect.getmodule(type(model))), *(vars(type(m)) for m in model.modules())]
    makers = [f for place in places for name, f in place.items() if "alibi" in name]
    return any(
        "attention_mask" in inspect.signature(maker).parameters
        for maker in makers
        if inspect.isfunction(maker)
    )


def _by_distance(model: Any) -> bool:
    """Whether a model that takes positions adds something by the distance of two slots."""
    kind = getattr(model.config, "position_embedding_type", None)
    return isinstance(kind, str) and kind.startswith("relative")
