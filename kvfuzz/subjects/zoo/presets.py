"""The built-in decoders by name, and the factory of `zoo` and `zoo:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvfuzz.case.dtypes import NARROW
from kvfuzz.errors import InvalidSubject, UsageError, did_you_mean
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder

PRESETS = {
    "default": DecoderConfig(),
    "rope": DecoderConfig(positions="rope", head_dim=4),
    "alibi": DecoderConfig(positions="alibi", head_dim=4),
    "nope": DecoderConfig(positions="none", head_dim=4),
    "rmsnorm": DecoderConfig(norm="rmsnorm", head_dim=4),
    "grouped": DecoderConfig(heads=4, kv_heads=2, head_dim=4, positions="rope"),
    "window": DecoderConfig(window=4, head_dim=4),
    "llama": DecoderConfig(
        layers=3, heads=4, kv_heads=1, head_dim=8, positions="rope", norm="rmsnorm"
    ),
    "mistral": DecoderConfig(
        heads=4, kv_heads=2, head_dim=8, positions="rope", norm="rmsnorm", window=5
    ),
    "deep": DecoderConfig(layers=6, heads=2, head_dim=8),
    "static": DecoderConfig(cache="static", head_dim=4),
    "static-window": DecoderConfig(cache="static", positions="rope", window=4, head_dim=4),
    "ring": DecoderConfig(cache="ring", positions="rope", window=4, head_dim=4),
    "paged": DecoderConfig(cache="paged", positions="rope", head_dim=4),
    "prefix": DecoderConfig(cache="prefix", head_dim=4),
    "int8": DecoderConfig(cache="int8", positions="rope", head_dim=8),
    "alternating": DecoderConfig(mix="alternating", layers=3, positions="rope", head_dim=4),
    "gemma": DecoderConfig(
        mix="alternating",
        cache="ring",
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=4,
        positions="rope",
        norm="rmsnorm",
        window=4,
    ),
    "recurrent": DecoderConfig(mix="recurrent", head_dim=4),
    "shared_kv": DecoderConfig(mix="shared_kv", positions="rope", head_dim=4),
    "cross": DecoderConfig(mix="cross", positions="rope", head_dim=4),
}

# The settings that `zoo` draws. A counterexample shrinks to the first value of each.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "positions": ("learned", "rope", "alibi", "none"),
    "norm": ("layernorm", "rmsnorm"),
    "layers": (2, 3, 1),
    "heads": (2, 4),
    "kv_heads": (2, 1),
    "head_dim": (2, 4, 8),
    "window": (None, 3, 5),
    "scale": (1.0, 0.7, 2.0),
    # Not int8, which changes what is allowed: name it (`zoo:int8`) to draw it.
    "cache": ("concatenated", "static", "ring", "paged", "prefix"),
    "mix": ("uniform", "alternating", "recurrent", "shared_kv", "cross"),
}


def factory(rest: str, options: Options) -> Factory:
    """`zoo` draws whole configurations; `zoo:NAME` keeps a preset's and draws its weight scale.

    Raises InvalidSubject for an unknown preset, UsageError for a setting out of range.
    """
    if rest and rest not in PRESETS:
        raise InvalidSubject(
            f"the zoo has no decoder {rest!r}{did_you_mean(rest, PRESETS)}: choose from "
            f"{', '.join(PRESETS)}"
        )
    base = PRESETS[rest or "default"]
    drawn_fields = {"scale": CHOICES["scale"]} if rest else CHOICES
    fixed = base.with_settings(**options.config)
    choices = {
        name: tuple(value for value in values if _allowed(fixed, name, value))
        for name, values in drawn_fields.items()
        if name not in options.config
    }

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> Decoder:
        settings = base.with_settings(**config)
        return Decoder(settings, seed=seed, dtype=dtype, device=options.device)

    name = f"zoo:{rest}" if rest else "zoo"
    if options.dtype:
        return Factory(name, build, (options.dtype,), choices, dict(options.config))
    dtypes = ("float32", "float64")
    return Factory(name, build, dtypes, choices, dict(options.config), narrow=NARROW)


def _allowed(config: DecoderConfig, name: str, value: Any) -> bool:
    """Whether `value` may be drawn together with what the user has fixed."""
    try:
        config.with_settings(**{name: value})
    except UsageError:
        return False
    return True
