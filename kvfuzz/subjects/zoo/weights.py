"""The weights of a built-in decoder: one flat parameter, and the named views into it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from kvfuzz.subjects.zoo.config import DecoderConfig

MLP_RATIO = 4
KERNEL = 3
"""How many tokens the convolution of a recurrent layer reads, the current one included."""


@dataclass(frozen=True, slots=True)
class Norm:
    gain: Tensor  # [width]
    bias: Tensor  # [width]


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Norm
    query: Tensor  # [width, heads * head_dim]
    key: Tensor  # [width, kv_heads * head_dim]
    value: Tensor  # [width, kv_heads * head_dim]
    out: Tensor  # [heads * head_dim, width]
    mlp_norm: Norm
    mlp_in: Tensor  # [width, MLP_RATIO * width]
    mlp_in_bias: Tensor  # [MLP_RATIO * width]
    mlp_out: Tensor  # [MLP_RATIO * width, width]
    mlp_out_bias: Tensor  # [width]
    convolution: Tensor | None = None  # [KERNEL, kv_heads * head_dim], of a recurrent layer alone


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of weights; several (see `views`) have further axes in front."""

    token: Tensor  # [vocab_size, width]; also the readout, tied
    position: Tensor  # [max_length, width]; no rows unless positions are learned
    layers: tuple[Layer, ...]
    final_norm: Norm


class Parameters(nn.Module):
    """All weights of a decoder in one flat parameter, so that they are drawn, perturbed, cast
    and trained by one operation."""

    def __init__(self, config: DecoderConfig, flat: Tensor) -> None:
        super().__init__()
        self.config = config
        self.flat = nn.Parameter(flat)
        self._known: tuple[Tensor, Weights] | None = None

    def weights(self) -> Weights:
        """Returns the named views into the flat parameter as it is now.

        They are made once for each memory that the parameter has, and show whatever is written into
        it. Where gradients flow, they are part of a graph, and made in each call.
        """
        flat = self.flat
        if flat.requires_grad or type(flat) is not nn.Parameter:
            return views(self.config, flat)
        data = flat.detach()
        if self._known is None or not _is_same_memory(self._known[0], data):
            self._known = data, views(self.config, data)
        return self._known[1]


def _is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two flat tensors are the same numbers in the same place."""
    return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype


def views(config: DecoderConfig, flat: Tensor) -> Weights:
    """Returns the named views into `flat`, which holds one set of weights [n] or several [sets, n].

    Views of several sets have axes in front of their own, so that they broadcast over activations
    [sets, batch, time, features].
    """
    sizes, shapes = _layout(config, flat.shape[:-1])
    pieces = torch.split(flat, sizes, dim=-1)
    found = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return _named(config, found)


@lru_cache(maxsize=256)
def _layout(
    config: DecoderConfig, sets: tuple[int, ...]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Returns the number of entries and the shape of each view, with the axes of `views` in
    front."""
    own = _shapes(config)
    return [math.prod(shape) for shape in own], [
        (*sets, *(1,) * (3 - len(shape)), *shape) if sets else shape for shape in own
    ]


def draw_parameters(
    config: DecoderConfig, seed: int, dtype: torch.dtype, device: str
) -> Parameters:
    """Draws parameters by `seed`: the same on every device, and rounded from the same float64
    values in every dtype.

    Norm gains are 1 + 0.2 x, biases 0.2 x, matrices scale * width^-1/2 x, with x normal: gains
    of one and biases of zero would hide a skipped norm.
    """
    generator = torch.Generator().manual_seed(seed)
    spread, shift = _spread_and_shift(config)
    flat = torch.randn(len(spread), generator=generator, dtype=torch.float64)
    parameters = Parameters(config, flat.mul_(spread).add_(shift))
    parameters.requires_grad_(False)
    if config.recurs(0):
        convolution = parameters.weights().layers[0].convolution
        assert convolution is not None
        convolution.mul_(math.sqrt(config.width / KERNEL))
    return parameters.to(device=device, dtype=dtype)


@lru_cache(maxsize=256)
def _spread_and_shift(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Returns the standard deviation and the mean of each entry of the flat parameter."""
    matrix = config.scale / math.sqrt(config.width)
    shapes = _shapes(config)
    spread = torch.cat(
        [
            torch.full((math.prod(s),), matrix if len(s) == 2 else 0.2, dtype=torch.float64)
            for s in shapes
        ]
    )
    shift = torch.zeros_like(spread)
    spreads, means = views(config, spread), views(config, shift)
    for layer in means.layers:
        layer.attention_norm.gain.add_(1)
        layer.mlp_norm.gain.add_(1)
    means.final_norm.gain.add_(1)
    for layer in spreads.layers:
        # The second MLP matrix has a wider input; keep its output at the scale of the others.
        layer.mlp_out.div_(math.sqrt(MLP_RATIO))
    return spread, shift


def _shapes(config: DecoderConfig) -> list[tuple[int, ...]]:
    """Returns the shapes of the views, in the order of `_named`."""
    width, hidden = config.width, MLP_RATIO * config.width
    kv = config.kv_heads * config.head_dim
    norm: list[tuple[int, ...]] = [(width,), (width,)]
    projections = [(width, width), (width, kv), (width, kv), (width, width)]
    mlp: list[tuple[int, ...]] = [(width, hidden), (hidden,), (hidden, width), (width,)]
    rows = config.max_length if config.positions == "learned" else 0
    layer = [*norm, *projections, *norm, *mlp]
    convolution = [(KERNEL, kv)] if config.recurs(0) else []
    return [(config.vocab_size, width), (rows, width), *layer * config.layers, *norm, *convolution]


def _named(config: DecoderConfig, views: list[Tensor]) -> Weights:
    convolution = views.pop() if config.recurs(0) else None
    token, position, *rest, gain, bias = views
    per_layer = 12
    layers = []
    for start in range(0, len(rest), per_layer):
        gain1, bias1, query, key, value, out, gain2, bias2, *mlp = rest[start : start + per_layer]
        layers.append(Layer(Norm(gain1, bias1), query, key, value, out, Norm(gain2, bias2), *mlp))
    if convolution is not None:
        layers[0] = replace(layers[0], convolution=convolution)
    return Weights(token, position, tuple(layers), Norm(gain, bias))
