"""Tiny configurations of transformers models, found by the fields that a configuration has.

No model is named here: a field is set where it exists, under the model's own spelling of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.subjects.transformers.tf_layers import kinds_kept
from kvfuzz.subjects.transformers.tf_sizes import LAYERS, sizes_of

# The settings that a strategy may draw where a configuration has them, simplest first.
DRAWN: Mapping[str, tuple[Any, ...]] = {"use_sliding_window": (False, True)}


def fields_of(config_class: Any) -> dict[str, Any]:
    """The fields that `config_class` takes, with the value each has by default."""
    default = config_class()
    names = {name for name in vars(default) if not name.startswith("_")}
    for name, parameter in inspect.signature(config_class.__init__).parameters.items():
        if name != "self" and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            names.add(name)
    return {name: _read(default, name) for name in sorted(names)}


def own_names(config_class: Any, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`settings` under the spelling of `config_class`, with objects laid over its defaults.

    Raises UsageError for a field that the configuration does not have.
    """
    known = fields_of(config_class)
    aliases = config_class.attribute_map
    own = {}
    for word, value in settings.items():
        field = aliases.get(word, word)
        if field not in known:
            raise UsageError(
                f"{name} has no setting {word!r}{did_you_mean(word, [*known, *aliases])}"
            )
        laid_over = isinstance(value, dict) and isinstance(known[field], dict)
        own[field] = {**known[field], **value} if laid_over else value
    return own


def shrunk(config_class: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a model of `config_class` tiny; `chosen` ones win."""
    known = fields_of(config_class)
    aliases = config_class.attribute_map
    hidden, heads = (
        _count(chosen.get(aliases.get(word, word)), usual)
        for word, usual in (("hidden_size", 32), ("num_attention_heads", 4))
    )
    settings = {}
    if "multi_query" in known and not chosen.get("multi_query", True):
        known = {**known, "multi_query": False}
    for word, value in sizes_of(known, hidden, heads).items():
        field = aliases.get(word, word)
        if field in known:
            settings[field] = value
    for field, value in known.items():
        # Dropout is off in evaluation, save where a model forgets to ask; zero leaves no doubt.
        if "drop" in field and isinstance(value, int | float) and not isinstance(value, bool):
            settings[field] = 0.0
    layers_field = aliases.get("num_hidden_layers", "num_hidden_layers")
    asked = chosen.get(layers_field)
    if not isinstance(asked, int) and settings.get(layers_field, LAYERS) != LAYERS:
        asked = settings[layers_field]
    settings |= kinds_kept(known, layers_field, _count(asked, 0) or None)
    return {**settings, **chosen}


def tokens_apart(config: Any, chosen: Mapping[str, Any]) -> None:
    """Move the special tokens of `config` into its vocabulary, and padding out of the way.

    Those that were `chosen` stay. Padding gets the index -1, the last row of an embedding table:
    no drawn token equals it, and to a model that counts positions by what is not padding, every
    token of ours is text.
    """
    for field in [name for name in vars(config) if name.endswith("_token_id")]:
        value = _read(config, field)
        if field in chosen or not isinstance(value, int):
            continue
        if field == "pad_token_id":
            setattr(config, field, -1)
        elif value >= config.vocab_size:
            setattr(config, field, config.vocab_size - 1)


def _count(value: Any, otherwise: int) -> int:
    """`value` if it is a positive integer; what is not is for the configuration to refuse."""
    return value if isinstance(value, int) and value > 0 else otherwise


def _read(config: Any, name: str) -> Any:
    """The value of a field, None where reading it raises (as fields that differ by layer do)."""
    try:
        return getattr(config, name)
    except Exception:
        return None
