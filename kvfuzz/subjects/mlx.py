"""Makes subjects of mlx-lm: tiny random models of any of its model types, run on the CPU.

Subjects take and return torch tensors; these become MLX arrays, and back, by way of numpy. No
subject runs in float64: there too MLX computes exponentials and rotations in float32, and some of
its kernels end the process.
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError, did_you_mean, one_line
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.perturb import signs
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.tiny_fields import LENGTHS, fill_fields, first_count, width_of
from kvfuzz.subjects.transformers.weights import LEAST_GAIN, MOST_GAIN, VECTOR_SPREAD

DTYPES = ("float32", "bfloat16", "float16")
MOST_PARAMETERS = 20_000_000
_USAGE = "write mlx:TYPE for a tiny model of mlx_lm.models.TYPE (mlx:llama)"

Weights = Mapping[str, "np.ndarray[Any, np.dtype[np.float64]]"]
"""The weights of a model by path, float64."""


def factory(rest: str, options: Options) -> Factory:
    """`mlx:TYPE` draws tiny random models; `options.config` sets the fields of their arguments.

    Raises InvalidSubject if mlx-lm is not installed or has no such model type, UsageError for a
    setting that the arguments do not have, or that one field of them has to be set.
    """
    name = f"mlx:{rest}"
    if options.dtype not in (None, *DTYPES):
        raise UsageError(f"{name} does not run in {options.dtype}: choose {', '.join(DTYPES)}")
    if options.device != "cpu":
        raise UsageError(f"{name} runs on the CPU alone, got --device {options.device}")
    library = find_library(rest)

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> MlxSubject:
        settings = {"model_type": rest, **options.config, **config}
        arguments = fill_fields(library.arguments, settings, name)
        try:
            return MlxSubject(library, arguments, seed, dtype)
        except KvfuzzError:
            raise
        except Exception as error:
            text = f"{name} cannot be built: {one_line(error)}"
            raise (UsageError if options.config else InvalidSubject)(text) from error

    made = Factory(name, build, (options.dtype or DTYPES[0],), fixed=dict(options.config))
    # Built once now, so that settings are refused here and not at the first case.
    build(0, made.dtypes[0], {})
    return made


class MlxSubject:
    """A model of mlx-lm behind the protocol of `kvfuzz.subjects.protocol.Subject`. It is given
    tokens alone: it reads positions from the caches that the library makes for its layers."""

    device = torch.device("cpu")

    def __init__(
        self, library: MlxLibrary, arguments: Mapping[str, Any], seed: int, dtype: str
    ) -> None:
        self._library = library
        self._arguments = arguments
        self._model = library.build_model(arguments)
        self._weights = library.load_weights(
            self._model, library.draw_weights(self._model, seed), dtype
        )
        self.max_length: int | None = first_count(self._model.args, LENGTHS)
        self.width: int | None = width_of(self._model.args)
        self.windows = [getattr(layer, "max_size", None) for layer in self.new_cache(1)]
        self.vocab_size: int = self.uncached(torch.zeros(1, 1, dtype=torch.int64)).shape[-1]

    def uncached(self, tokens: Tensor) -> Tensor:
        """Returns logits [batch, time, vocab] for all of `tokens` [batch, time], without a
        cache."""
        return self._run(self._model, tokens, None)

    def new_cache(self, batch: int) -> Any:  # noqa: ARG002
        """Returns the caches that the library makes for the layers, for any number of rows."""
        with self._library.on_cpu():
            return self._library.caches.make_prompt_cache(self._model)

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Returns logits [batch, time, vocab] for `tokens` alone, and the same cache, changed."""
        return self._run(self._model, tokens, cache), cache

    def crop(self, cache: Any, count: int) -> Any:
        """Drops the last `count` tokens, where the library says that the cache can be trimmed."""
        with self._library.on_cpu():
            if not self._library.caches.can_trim_prompt_cache(cache):
                raise NotImplementedError("the library cannot trim this cache")
            self._library.caches.trim_prompt_cache(cache, count)
        return cache

    def copy(self, cache: Any) -> Any:
        """Returns an independent copy, made as the library's server makes one."""
        return copy.deepcopy(cache)

    def save(self, cache: Any) -> bytes:
        """Returns the bytes that the library writes to a file. It cannot save an empty cache."""
        if not all(self._library.holds_something(layer) for layer in cache):
            raise NotImplementedError("a cache that holds nothing cannot be saved")
        with _temporary_file() as path, self._library.on_cpu():
            self._library.caches.save_prompt_cache(str(path), cache)
            return path.read_bytes()

    def load(self, state: bytes) -> Any:
        """Returns the cache whose bytes `save` returned."""
        with _temporary_file() as path, self._library.on_cpu():
            path.write_bytes(state)
            cache = self._library.caches.load_prompt_cache(str(path))
            # An array is read from its file when it is first needed; the file is deleted on exit.
            self._library.core.eval([layer.state for layer in cache])
            return cache

    def view(self, cache: Any) -> list[tuple[Tensor, Tensor] | None]:
        """Returns the keys and values [batch, kv_heads, held, head_dim] of each layer, the newest
        last; None for a layer that holds something else, or nothing yet."""
        with self._library.on_cpu():
            return [self._pair(layer) for layer in cache]

    def perturbed(self, tokens: Tensor, size: float, draws: Sequence[int | None]) -> Tensor:
        """Returns uncached logits [draws, batch, time, vocab] of the weights perturbed by a
        relative `size`: as float64, but computed in float32.

        So two of them differ by the rounding of either too, not by the perturbation alone. That
        overestimates the noise of a float32 model by no more than the rounding of two uncached
        runs.
        """
        parts = []
        for draw in draws:
            weights = self._perturbed_weights(size, draw)
            self._library.load_weights(self._perturbed_model, weights, "float32")
            parts.append(self._run(self._perturbed_model, tokens, None).double())
        return torch.stack(parts)

    @cached_property
    def _perturbed_model(self) -> Any:
        """A second model, for perturbed weights."""
        return self._library.build_model(self._arguments)

    def _perturbed_weights(self, size: float, draw: int | None) -> Weights:
        """Returns the weights of the model, perturbed unless `draw` is None."""
        if draw is None:
            return self._weights
        row, start, found = signs(sum(w.size for w in self._weights.values()), draw).numpy(), 0, {}
        for path, weight in self._weights.items():
            sign = row[start : start + weight.size].reshape(weight.shape)
            found[path] = weight * (1 + size * sign)
            start += weight.size
        return found

    def _run(self, model: Any, tokens: Tensor, cache: Any) -> Tensor:
        with self._library.on_cpu():
            logits = model(self._library.core.array(tokens.numpy()), cache=cache)
            return self._library.tensor(logits)

    def _pair(self, layer: Any) -> tuple[Tensor, Tensor] | None:
        pair = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not all(isinstance(part, self._library.core.array) and part.ndim == 4 for part in pair):
            return None
        # A rotating cache stores entries out of order, the others in front of unused slots.
        in_order = getattr(layer, "_temporal_order", lambda part: part[..., : layer.offset, :])
        keys, values = (self._library.tensor(in_order(part)) for part in pair)
        return keys, values


@contextmanager
def _temporary_file() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "cache.safetensors"


class MlxLibrary:
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
        """Returns a context in which MLX computes on the CPU."""
        return self.core.stream(self.core.cpu)

    def build_model(self, arguments: Mapping[str, Any]) -> Any:
        """Builds a model with `arguments`, in evaluation mode."""
        with self.on_cpu():
            model = self._model(self.arguments(**arguments))
            self._refuse_large(model)  # MLX is lazy: no weight is computed yet
            model.eval()
            return model

    def _refuse_large(self, model: Any) -> None:
        """Raises InvalidSubject if `model` is large in spite of its tiny arguments."""
        sizes = {path: w.size for path, w in self.utils.tree_flatten(model.parameters())}
        if (count := sum(sizes.values())) > MOST_PARAMETERS:
            largest = max(sizes, key=lambda path: sizes[path])
            raise InvalidSubject(
                f"{self.name} has {count:,} parameters, more than {MOST_PARAMETERS:,}, even made "
                f"tiny: set by --config the field that sizes {largest}"
            )

    def draw_weights(self, model: Any, seed: int) -> Weights:
        """Draws the weights of `seed` for `model`, in float64: the same on every machine."""
        generator = torch.Generator().manual_seed(seed)
        place = float(torch.rand((), generator=generator, dtype=torch.float64))
        gain = LEAST_GAIN + (MOST_GAIN - LEAST_GAIN) * place
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
                found[path] = initial + VECTOR_SPREAD * noise
        return found

    def load_weights(self, model: Any, weights: Weights, dtype: str) -> Weights:
        """Puts `weights` into `model` in `dtype`; returns them rounded to it."""
        with self.on_cpu():
            kind = getattr(self.core, dtype)
            arrays = {path: self.core.array(w, dtype=kind) for path, w in weights.items()}
            model.load_weights(list(arrays.items()), strict=False)
            exact = {path: array.astype(self.core.float32) for path, array in arrays.items()}
            return {path: np.array(array, dtype=np.float64) for path, array in exact.items()}

    def holds_something(self, layer: Any) -> bool:
        """Whether the cache of a layer holds any array."""
        try:
            state = layer.state
        except AttributeError:
            return False  # the property slices arrays that do not exist yet
        return any(isinstance(part, self.core.array) for _, part in self.utils.tree_flatten(state))

    def tensor(self, array: Any) -> Tensor:
        """Copies `array` to a tensor; bfloat16 by way of float32, since numpy has no bfloat16."""
        if array.dtype == self.core.bfloat16:
            return torch.from_numpy(np.array(array.astype(self.core.float32))).to(torch.bfloat16)
        return torch.from_numpy(np.array(array))


def find_library(rest: str) -> MlxLibrary:
    """Imports the library and the module of the model type `rest`. Raises InvalidSubject if it is
    not installed, or has no such model."""
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
    return MlxLibrary(module, f"mlx:{rest}")
