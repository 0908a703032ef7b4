"""Draws weights by a seed into one module, so that a new seed does not need a new module."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

# Noise on gains and biases: gains of one and biases of zero would hide a skipped one.
VECTOR_SPREAD = 0.2
# The range of the scale of the matrices. Smaller makes attention uniform, larger makes it one-hot:
# both hide faults, and the second also amplifies rounding.
LEAST_GAIN, MOST_GAIN = 0.7, 1.4


class SeededModule:
    """A module, and the seed whose weights it holds now (None: those it was built with)."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module.requires_grad_(False).eval()
        self.windows: dict[str, list[int | None]] = {}
        """The windows of the layers, by kind of cache, as far as they were asked for."""
        self._seed: int | None = None
        self.bytes = sum(p.numel() * p.element_size() for p in module.parameters())

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        """A tied weight is one parameter here, and stays tied because it is filled in place."""
        return [p for p in self._module.parameters() if p.is_floating_point()]

    @cached_property
    def _spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first values of all parameters in a row, and the deviations of matrices and vectors.
        A checkpoint is never drawn, and needs none of them."""
        initial, matrix, vector = [], [], []
        fans = _fans(self._module)
        for parameter in self._parameters:
            flat = parameter.detach().to("cpu", torch.float64).flatten()
            is_matrix = parameter.dim() > 1
            deviation = 1 / math.sqrt(fans[parameter]) if is_matrix else VECTOR_SPREAD
            initial.append(torch.zeros_like(flat) if is_matrix else flat)
            matrix.append(torch.full_like(flat, deviation if is_matrix else 0))
            vector.append(torch.full_like(flat, 0 if is_matrix else deviation))
        return torch.cat(initial), torch.cat(matrix), torch.cat(vector)

    def with_seed(self, seed: int | None) -> nn.Module:
        """Returns the module with the weights of `seed`, or as it was built if that is None.

        The values are drawn on the CPU in float64: one seed means the same weights on every
        device, and in every dtype up to rounding. Global random generators are not touched.
        """
        if seed != self._seed:
            if seed is None:
                raise ValueError("the original weights were overwritten")
            self._fill(seed)
            self._seed = seed
        return self._module

    @torch.no_grad()
    def _fill(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        place = torch.rand((), generator=generator, dtype=torch.float64).item()
        gain = LEAST_GAIN + (MOST_GAIN - LEAST_GAIN) * place
        initial, matrix, vector = self._spread
        noise = torch.randn(len(initial), generator=generator, dtype=torch.float64)
        flat = torch.addcmul(initial, noise, vector + gain * matrix)
        pieces = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.copy_(piece.view(parameter.shape))


def _fans(module: nn.Module) -> dict[Tensor, int]:
    """Returns the number of inputs that each matrix of `module` sums over."""
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
