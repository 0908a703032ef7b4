"""What `mlx:TYPE` names: the modules of mlx-lm behind a model type, and weights for its models."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject, did_you_mean, one_line

MOST_PARAMETERS = 20_000_000
# As for the models of transformers: see kvfuzz.subjects.transformers.weights.
_VECTOR_SPREAD, _LEAST_GAIN, _MOST_GAIN = 0.2, 0.7, 1.4

_USAGE = "write mlx:TYPE for a tiny model of mlx_lm.models.TYPE (mlx:llama)"

Weights = Mapping[str, "np.ndarray[Any, np.dtype[np.float64]]"]
"""The weights of a model by path, float64."""


class Library:
    """The modules of mlx and mlx-lm that a subject of one model type needs."""

    def __init__(self, module: Any, name: str) -> None:
        self.name = name
        self.core: Any = importlib.import_module("mlx.core")
        self.nn: Any = importlib.import_module("mlx.nn")
        self.utils: Any = importlib.import_module("mlx.utils")
        self.caches: Any = importlib.import_module("mlx_lm.models.cache")
        self.arguments: Any = module.ModelArgs
        self._model: Any = module.Model

    def on_cpu(self) -> Any:
        """A context in which what is computed is computed on the CPU."""
        return self.core.stream(self.core.cpu)

    def model(self, arguments: Mapping[str, Any]) -> Any:
        """A new model with `arguments`, in evaluation."""
        with self.on_cpu():
            model = self._model(self.arguments(**arguments))
            self._refuse_large(model)  # nothing is computed yet
            model.eval()
            return model

    def _refuse_large(self, model: Any) -> None:
        """Raise InvalidSubject if `model` would take seconds to draw in spite of its sizes."""
        sizes = {path: w.size for path, w in self.utils.tree_flatten(model.parameters())}
        if (count := sum(sizes.values())) > MOST_PARAMETERS:
            largest = max(sizes, key=lambda path: sizes[path])
            raise InvalidSubject(
                f"{self.name} has {count:,} parameters, more than {MOST_PARAMETERS:,}, even made "
                f"tiny: set by --config the field that sizes {largest}"
            )

    def drawn(self, model: Any, seed: int) -> Weights:
        """Weights of `seed` for `model`, drawn in float64: the same on every machine."""
        generator = torch.Generator().manual_seed(seed)
        place = float(torch.rand((), generator=generator, dtype=torch.float64))
        gain = _LEAST_GAIN + (_MOST_GAIN - _LEAST_GAIN) * place
        convolutions = {path for path, m in model.named_modules() if isinstance(m, self.nn.Conv1d)}
        found = {}
        for path, value in self.utils.tree_flatten(model.parameters()):
            if not self.core.issubdtype(value.dtype, self.core.floating):
                continue
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).numpy()
            if value.ndim > 1:
                convolved = path.rpartition(".")[0] in convolutions
                fan = np.prod(value.shape[1:]) if convolved else value.shape[-1]
                found[path] = noise * gain / np.sqrt(fan)
            else:
                initial = np.array(value.astype(self.core.float32), dtype=np.float64)
                found[path] = initial + _VECTOR_SPREAD * noise
        return found

    def filled(self, model: Any, weights: Weights, dtype: str) -> Weights:
        """Put `weights` into `model` in `dtype`; returns them as rounded to it."""
        with self.on_cpu():
            kind = getattr(self.core, dtype)
            arrays = {path: self.core.array(w, dtype=kind) for path, w in weights.items()}
            model.load_weights(list(arrays.items()), strict=False)
            exact = {path: array.astype(self.core.float32) for path, array in arrays.items()}
            return {path: np.array(array, dtype=np.float64) for path, array in exact.items()}

    def tensor(self, array: Any) -> Tensor:
        """`array` as a tensor of its own, bfloat16 by way of float32, which numpy has."""
        if array.dtype == self.core.bfloat16:
            return torch.from_numpy(np.array(array.astype(self.core.float32))).to(torch.bfloat16)
        return torch.from_numpy(np.array(array))


def library_of(rest: str) -> Library:
    """The library with the module of the model type `rest`. Raises InvalidSubject if it is not
    installed, or has no such model."""
    try:
        models: Any = importlib.import_module("mlx_lm.models")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mlx", "mlx_lm"):
            raise InvalidSubject(f"mlx-lm does not import: {one_line(error)}") from error
        raise InvalidSubject("mlx-lm is not installed: pip install 'kvfuzz[mlx]'") from None
    except Exception as error:
        raise InvalidSubject(f"mlx-lm does not import: {one_line(error)}") from error
    known = [found.name for found in pkgutil.iter_modules(models.__path__)]
    if not rest:
        raise InvalidSubject(f"mlx alone names no model: {_USAGE}")
    if rest not in known:
        raise InvalidSubject(
            f"mlx-lm has no model type {rest!r}{did_you_mean(rest, known)}: {_USAGE}"
        )
    try:
        module: Any = importlib.import_module(f"mlx_lm.models.{rest}")
    except (Exception, SystemExit) as error:
        raise InvalidSubject(f"mlx:{rest} does not import: {one_line(error)}") from error
    if not hasattr(module, "ModelArgs") or not hasattr(module, "Model"):
        raise InvalidSubject(f"mlx:{rest} is no model: {_USAGE}")
    return Library(module, f"mlx:{rest}")
