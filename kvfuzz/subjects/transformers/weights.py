"""Weights drawn by a seed into one module, so that a new seed does not need a new module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

# Noise on gains and biases: with gains of one and biases of nought a skipped one is not seen.
_VECTOR_SPREAD = 0.2
# Where the scale of the matrices is drawn from. Smaller makes attention uniform, larger makes it
# one-hot: both hide faults, and the second also amplifies rounding.
_LEAST_GAIN, _MOST_GAIN = 0.7, 1.4


class Drawn:
    """A module, and the seed whose weights it holds at the moment (None: those it came with)."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module.requires_grad_(False).eval()
        self.windows: dict[str, list[int | None]] = {}
        """The windows of the layers of each kind of cache that was asked for them."""
        self._seed: int | None = None
        # A tied weight is one parameter here, and stays tied because it is filled in place.
        self._parameters = [p for p in module.parameters() if p.is_floating_point()]
        initial, matrix, vector = [], [], []
        fans = _fans(module)
        for parameter in self._parameters:
            flat = parameter.detach().to("cpu", torch.float64).flatten()
            is_matrix = parameter.dim() > 1
            deviation = 1 / math.sqrt(fans[parameter]) if is_matrix else _VECTOR_SPREAD
            initial.append(torch.zeros_like(flat) if is_matrix else flat)
            matrix.append(torch.full_like(flat, deviation if is_matrix else 0))
            vector.append(torch.full_like(flat, 0 if is_matrix else deviation))
        self._initial, self._matrix, self._vector = map(torch.cat, (initial, matrix, vector))

    def at(self, seed: int | None) -> nn.Module:
        """The module with the weights of `seed`, or as it came if that is None.

        The values are drawn on the CPU in float64, so that one seed means the same weights on
        every device, and the same but for rounding in every dtype. The global generators of
        random numbers are not touched.
        """
        if seed != self._seed:
            if seed is None:
                raise ValueError("weights that were overwritten cannot be had back")
            self._fill(seed)
            self._seed = seed
        return self._module

    @torch.no_grad()
    def _fill(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        place = torch.rand((), generator=generator, dtype=torch.float64).item()
        gain = _LEAST_GAIN + (_MOST_GAIN - _LEAST_GAIN) * place
        noise = torch.randn(len(self._initial), generator=generator, dtype=torch.float64)
        flat = torch.addcmul(self._initial, noise, self._vector + gain * self._matrix)
        pieces = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.copy_(piece.view(parameter.shape))


def _fans(module: nn.Module) -> dict[Tensor, int]:
    """The number of inputs that each matrix of `module` sums over."""
    fans: dict[Tensor, int] = {}
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            if parameter.dim() > 1:
                fans.setdefault(parameter, _fan_in(owner, parameter))
    return fans


def _fan_in(owner: Any, parameter: Tensor) -> int:
    # GPT-2's linear layer is called Conv1D and holds its matrix as [in, out].
    if type(owner).__name__ == "Conv1D":
        return parameter.shape[0]
    if isinstance(owner, nn.Conv1d):
        return math.prod(parameter.shape[1:])
    return parameter.shape[-1]
