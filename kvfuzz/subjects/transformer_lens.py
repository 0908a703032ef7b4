"""Makes subjects of TransformerLens: tiny random HookedTransformers, by their kind of positions.

The cache has time on axis 1, appends the mask of each call itself, and cannot be cropped.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError, did_you_mean, one_line
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.tiny_fields import LAYERS, WINDOW, fill_fields
from kvfuzz.subjects.transformers.weights import LEAST_GAIN, MOST_GAIN, VECTOR_SPREAD

POSITIONS = ("standard", "rotary", "shortformer", "alibi")
CACHES = ("HookedTransformerKeyValueCache", "TransformerLensKeyValueCache")

# The settings that a strategy may draw, simplest first. `rehearsed` is kvfuzz's own: whether each
# call first runs on the frozen cache.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "n_key_value_heads": (None, 2),
    "use_local_attn": (False, True),
    "rehearsed": (False, True),
}


def factory(rest: str, options: Options) -> Factory:
    """`transformer_lens:POSITIONS` draws tiny random models; `options.config` sets the fields of
    their configuration, and `rehearsed`.

    Raises InvalidSubject if TransformerLens is not installed or has no such positions, UsageError
    for a setting that the configuration does not have or refuses.
    """
    name = f"transformer_lens:{rest}"
    library = _import_library()
    if rest not in POSITIONS:
        raise InvalidSubject(
            f"transformer_lens has no positions {rest!r}{did_you_mean(rest, POSITIONS)}: write "
            f"transformer_lens:POSITIONS with one of {', '.join(POSITIONS)}"
        )

    # One module for all seeds: building one takes longer than a case.
    @lru_cache(maxsize=16)
    def module(dtype: str, settings: str) -> _SeededModule:
        return _build_module(library, rest, json.loads(settings), dtype, options.device, name)

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> TransformerLensSubject:
        settings = {**options.config, **config}
        rehearsed = bool(settings.pop("rehearsed", False))
        one = module(dtype, json.dumps(settings, sort_keys=True))
        return TransformerLensSubject(library, one, seed, rehearsed)

    dtypes = (options.dtype,) if options.dtype else ("float32", "float64")
    choices = {word: values for word, values in CHOICES.items() if word not in options.config}
    made = Factory(name, build, dtypes, choices, dict(options.config))
    # Built once now, so that settings are refused here and not at the first case.
    for dtype in dtypes:
        build(0, dtype, made.first_config())
    return made


class TransformerLensSubject:
    """A HookedTransformer behind the protocol of `kvfuzz.subjects.protocol.Subject`. Subjects of
    other seeds may share the module, so `model` fills it with this one's weights first."""

    positions_from_mask = True

    def __init__(self, library: Any, module: _SeededModule, seed: int, rehearsed: bool) -> None:
        self._module = module
        self._seed = seed
        self._rehearsed = rehearsed
        self._caches = next(getattr(library, word) for word in CACHES if hasattr(library, word))
        config = self.model.cfg
        self.vocab_size: int = config.d_vocab_out
        self.max_length: int = config.n_ctx
        self.width: int = config.d_model
        # Both ALiBi and a window measure distances in slots, whatever those hold.
        self._counts_slots = config.positional_embedding_type == "alibi" or config.use_local_attn
        self.device = torch.device(config.device)

    @property
    def model(self) -> Any:
        """The torch module, holding the weights of this subject."""
        return self._module.with_seed(self._seed)

    def uncached(self, tokens: Tensor) -> Tensor:
        """Returns logits [batch, time, vocab] for all of `tokens` [batch, time], without a
        cache."""
        logits: Tensor = self.model(tokens)
        return logits

    def new_cache(self, batch: int) -> Any:
        """Returns an empty cache for `batch` rows."""
        return self._caches.init_cache(self.model.cfg, self.device, batch)

    def cached(
        self, tokens: Tensor, cache: Any, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Returns logits [batch, time, vocab] for `tokens` alone, and the cache, changed in place.

        The library gets the part of `mask` [batch, slots + time] that is about `tokens`; it keeps
        the earlier part itself.
        """
        if mask is not None and self._counts_slots and _has_gap(mask):
            raise NotImplementedError("this model counts the padding between two tokens")
        given = {} if mask is None else {"attention_mask": mask[:, -tokens.shape[1] :].long()}
        if self._rehearsed:
            cache.freeze()
            self.model(tokens, past_kv_cache=cache, **given)
            cache.unfreeze()
        return self.model(tokens, past_kv_cache=cache, **given), cache

    def copy(self, cache: Any) -> Any:
        """Returns an independent copy."""
        return copy.deepcopy(cache)

    def save(self, cache: Any) -> Any:
        """Returns the cache itself, which can be pickled."""
        return cache

    def load(self, state: Any) -> Any:
        """Returns the cache that was saved."""
        return state

    def view(self, cache: Any) -> list[tuple[Tensor, Tensor]]:
        """Returns the keys and values [batch, kv_heads, held, head_dim] of each layer, the newest
        last."""
        return [(e.past_keys.transpose(1, 2), e.past_values.transpose(1, 2)) for e in cache.entries]


class _SeededModule:
    """A module, and the seed whose weights it holds now."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module.requires_grad_(False).eval()
        self._initial = [p.detach().clone() for p in module.parameters()]
        self._seed: int | None = None

    @torch.no_grad()
    def with_seed(self, seed: int) -> torch.nn.Module:
        """Returns the module with the weights of `seed`, drawn on the CPU in float64."""
        if seed == self._seed:
            return self._module
        generator = torch.Generator().manual_seed(seed)
        place = float(torch.rand((), generator=generator, dtype=torch.float64))
        gain = LEAST_GAIN + (MOST_GAIN - LEAST_GAIN) * place
        named = self._module.named_parameters()
        for (path, parameter), initial in zip(named, self._initial, strict=True):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            fan = _fan_in(path, parameter)
            value = noise * gain / math.sqrt(fan) if fan else initial.cpu() + VECTOR_SPREAD * noise
            parameter.copy_(value)
        self._seed = seed
        return self._module


def _has_gap(mask: Tensor) -> bool:
    """Whether a row of `mask` [batch, slots] has padding between text."""
    before, after = mask.cumsum(-1) > 0, mask.flip(-1).cumsum(-1).flip(-1) > 0
    return bool((before & ~mask & after).any())


def _fan_in(path: str, parameter: Tensor) -> int:
    """Returns the number of inputs that a matrix sums over; 0 for what is no matrix.

    A matrix is named W_... and has the axes [..., in, out]. W_O sums over heads too. The entries of
    an embedding are looked up, not summed.
    """
    kind = path.rpartition(".")[2]
    if not kind.lstrip("_").startswith("W_"):
        return 0
    if kind in ("W_E", "W_pos"):
        return parameter.shape[-1]
    return math.prod(parameter.shape[:-1]) if kind == "W_O" else parameter.shape[-2]


def _build_module(
    library: Any, positions: str, settings: Mapping[str, Any], dtype: str, device: str, name: str
) -> _SeededModule:
    """Builds the module with `settings`, and runs it once."""
    base: dict[str, Any] = {
        "positional_embedding_type": positions,
        "act_fn": "gelu",
        "num_experts": None,
        "window_size": WINDOW,
        # If a window is in use, it is the first layer's; the second sees everything.
        "attn_types": (["local", "global"] * settings.get("n_layers", LAYERS))[
            : settings.get("n_layers", LAYERS)
        ],
        "device": device,
        "dtype": getattr(torch, dtype),
    }
    kind = library.HookedTransformerConfig
    arguments = fill_fields(kind, {**base, **settings}, name)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            module = library.HookedTransformer(kind(**arguments))
            # Without a mask the library asks the tokenizer for padding: this one has none.
            module.tokenizer = SimpleNamespace(padding_side="right", pad_token_id=-1)
            # The longest row, once: a table that grows on demand would make rounding depend on the
            # calls before.
            module(torch.zeros(1, module.cfg.n_ctx, dtype=torch.int64, device=device))
    except KvfuzzError:
        raise
    except Exception as error:
        if settings:
            text = json.dumps(settings, sort_keys=True)
            raise UsageError(f"{name} cannot have {text}: {one_line(error)}") from error
        raise InvalidSubject(f"{name} cannot be built: {one_line(error)}") from error
    return _SeededModule(module)


def _import_library() -> Any:
    """Imports transformer_lens. Raises InvalidSubject if it is not installed."""
    try:
        library = importlib.import_module("transformer_lens")
    except ModuleNotFoundError as error:
        if error.name != "transformer_lens":
            raise InvalidSubject(f"TransformerLens does not import: {one_line(error)}") from error
        raise InvalidSubject(
            "TransformerLens is not installed: pip install 'kvfuzz[transformer-lens]'"
        ) from None
    except Exception as error:
        raise InvalidSubject(f"TransformerLens does not import: {one_line(error)}") from error
    forward = getattr(getattr(library, "HookedTransformer", None), "forward", None)
    if forward is None or "past_kv_cache" not in inspect.signature(forward).parameters:
        raise InvalidSubject("this TransformerLens has no HookedTransformer with a past_kv_cache")
    return library
