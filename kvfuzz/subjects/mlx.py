"""Decoders of mlx-lm: tiny random ones of any of its model types, run on the CPU.

The tensors that the protocol speaks of are torch's; they cross over through numpy. There is no
float64 lane: on float64 too MLX takes exponentials and rotations in float32, and some of its
kernels end the process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError, one_line
from kvfuzz.subjects.float64 import signs
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.mlx_source import Library, Weights, library_of
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.tiny_fields import LENGTHS, filled, first_of, width_of

DTYPES = ("float32", "bfloat16", "float16")


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
    library = library_of(rest)

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> MlxSubject:
        settings = {"model_type": rest, **options.config, **config}
        arguments = filled(library.arguments, settings, name)
        try:
            return MlxSubject(library, arguments, seed, dtype)
        except KvfuzzError:
            raise
        except Exception as error:
            text = f"{name} cannot be built: {one_line(error)}"
            raise (UsageError if options.config else InvalidSubject)(text) from error

    made = Factory(name, build, (options.dtype or DTYPES[0],), fixed=dict(options.config))
    # Built once now, so that settings are refused at the door and not at the first case.
    build(0, made.dtypes[0], {})
    return made


class MlxSubject:
    """A model of mlx-lm behind the protocol of `kvfuzz.subjects.protocol.Subject`. Tokens alone are
    passed: the caches that the library makes for its layers tell it where it is."""

    device = torch.device("cpu")

    def __init__(
        self, library: Library, arguments: Mapping[str, Any], seed: int, dtype: str
    ) -> None:
        self._library = library
        self._arguments = arguments
        self._model = library.model(arguments)
        self._weights = library.filled(self._model, library.drawn(self._model, seed), dtype)
        self.max_length: int | None = first_of(self._model.args, LENGTHS)
        self.width: int | None = width_of(self._model.args)
        self.windows = [getattr(layer, "max_size", None) for layer in self.new_cache(1)]
        self.vocab_size: int = self.uncached(torch.zeros(1, 1, dtype=torch.int64)).shape[-1]

    def uncached(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocab] for all of `tokens` [batch, time], without a cache."""
        return self._run(self._model, tokens, None)

    def new_cache(self, batch: int) -> Any:  # noqa: ARG002
        """The caches of the layers as the library makes them, for any number of rows."""
        with self._library.on_cpu():
            return self._library.caches.make_prompt_cache(self._model)

    def cached(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits [batch, time, vocab] for `tokens` alone, and the cache, which was changed."""
        return self._run(self._model, tokens, cache), cache

    def crop(self, cache: Any, count: int) -> Any:
        """Drop the last `count` tokens, where the library says that the cache can be trimmed."""
        with self._library.on_cpu():
            if not self._library.caches.can_trim_prompt_cache(cache):
                raise NotImplementedError("the library cannot trim this cache")
            self._library.caches.trim_prompt_cache(cache, count)
        return cache

    def copy(self, cache: Any) -> Any:
        """An independent copy, made as the library's server makes one."""
        return copy.deepcopy(cache)

    def save(self, cache: Any) -> bytes:
        """What the library writes to a file. It cannot save an empty cache."""
        if not all(_holds(layer) for layer in cache):
            raise NotImplementedError("a cache that holds nothing cannot be saved")
        with _file() as path, self._library.on_cpu():
            self._library.caches.save_prompt_cache(str(path), cache)
            return path.read_bytes()

    def load(self, state: bytes) -> Any:
        """The cache that `save` gave the bytes of."""
        with _file() as path, self._library.on_cpu():
            path.write_bytes(state)
            cache = self._library.caches.load_prompt_cache(str(path))
            # Read now: an array is loaded from its file when it is first needed.
            self._library.core.eval([layer.state for layer in cache])
            return cache

    def view(self, cache: Any) -> list[tuple[Tensor, Tensor] | None]:
        """The keys and values [batch, kv_heads, held, head_dim] of each layer, the newest last;
        None for a layer that holds something else, or nothing yet."""
        with self._library.on_cpu():
            return [self._seen(layer) for layer in cache]

    def perturbed(self, tokens: Tensor, size: float, draws: Sequence[int | None]) -> Tensor:
        """The uncached logits [draws, batch, time, vocab] of the weights perturbed by a relative
        `size`: float64, but computed in float32.

        For a float32 model two of them differ by what the perturbation does and by how either
        rounds, so that the noise is rather over- than underestimated, and by no more than the
        rounding of two uncached runs.
        """
        parts = []
        for draw in draws:
            self._library.filled(self._other, self._moved(size, draw), "float32")
            parts.append(self._run(self._other, tokens, None).double())
        return torch.stack(parts)

    @cached_property
    def _other(self) -> Any:
        """A second model, for other weights."""
        return self._library.model(self._arguments)

    def _moved(self, size: float, draw: int | None) -> Weights:
        """The weights of the model, perturbed unless `draw` is None."""
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

    def _seen(self, layer: Any) -> tuple[Tensor, Tensor] | None:
        held = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not all(isinstance(part, self._library.core.array) and part.ndim == 4 for part in held):
            return None
        in_order = getattr(layer, "_temporal_order", lambda part: part[..., : layer.offset, :])
        keys, values = (self._library.tensor(in_order(part)) for part in held)
        return keys, values


def _holds(layer: Any) -> bool:
    """Whether the cache of a layer holds something."""
    try:
        state = layer.state
    except AttributeError:
        return False  # it slices what is not there yet
    return bool(state) and all(part is not None for part in state)


@contextmanager
def _file() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "cache.safetensors"
