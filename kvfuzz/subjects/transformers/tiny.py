"""Makes tiny configurations of transformers models: small sizes, and one layer of each kind.

No model is named here. A field is set where a configuration has it, under its own spelling.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from typing import Any

from kvfuzz.errors import UsageError, did_you_mean

WINDOW = 6
LAYERS = 2
TOKENS = 64
_STATE, _CHUNK, _EXPAND = 8, 4, 2
_STATE_HEADS = {
    "mamba_d_head": "mamba_n_heads",
    "mamba_headdim": "n_mamba_heads",
    "mamba_head_dim": "mamba_num_heads",
}
"""The fields for the width of the heads of a state, each with the field for their number."""

# The settings that a strategy may draw where a configuration has them, simplest first.
DRAWN: Mapping[str, tuple[Any, ...]] = {"use_sliding_window": (False, True)}


def fields_of(config_class: Any) -> dict[str, Any]:
    """Returns the fields that `config_class` takes, with their defaults."""
    default = config_class()
    names = {name for name in vars(default) if not name.startswith("_")}
    for name, parameter in inspect.signature(config_class.__init__).parameters.items():
        if name != "self" and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            names.add(name)
    return {name: _read(default, name) for name in sorted(names)}


def rename_settings(config_class: Any, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns `settings` under the spelling of `config_class`; objects are merged into defaults.

    Raises UsageError for a field that the configuration does not have, unless the settings are a
    whole file of the library, which may hold any: such a field is left out (`unknown_fields`).
    """
    _require_model_type(config_class, settings, name)
    known = fields_of(config_class)
    aliases = config_class.attribute_map
    unknown = unknown_fields(config_class, settings)
    own = {}
    for word, value in settings.items():
        field = aliases.get(word, word)
        if word == MODEL_TYPE or (word in unknown and MODEL_TYPE in settings):
            continue
        if field not in known and word not in unknown:
            own[word] = value  # the library stores it under another name
            continue
        if word in unknown:
            raise UsageError(
                f"{name} has no setting {word!r}{did_you_mean(word, [*known, *aliases])}"
            )
        merges = isinstance(value, dict) and isinstance(known[field], dict)
        own[field] = {**known[field], **value} if merges else value
    return own


MODEL_TYPE = "model_type"
"""The field that each file of the library has, and nobody types."""


def unknown_fields(config_class: Any, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the words of `settings` that the configuration neither has nor reads."""
    known = {*fields_of(config_class), *config_class.attribute_map, MODEL_TYPE}
    return tuple(
        word
        for word, value in settings.items()
        if word not in known and not _is_read(config_class, word, value)
    )


def _is_read(config_class: Any, word: str, value: Any) -> bool:
    """Whether the library takes `word`, as for files of earlier releases: it stores the value under
    another name, or finds it wrong."""
    default = config_class()
    if isinstance(getattr(config_class, word, None), property):
        return True
    try:
        made = config_class.from_dict({word: copy.deepcopy(value)})
    except Exception:
        return True  # it says why when the model is built
    return bool({**made.to_dict(), word: None} != {**default.to_dict(), word: None})


def _require_model_type(config_class: Any, settings: Mapping[str, Any], name: str) -> None:
    found = settings.get(MODEL_TYPE, config_class.model_type)
    if found != config_class.model_type:
        raise UsageError(f"{name} cannot have the settings of another model type, {found!r}")


def shrink_config(config_class: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that make a model of `config_class` tiny; those `chosen` win."""
    known = fields_of(config_class)
    aliases = config_class.attribute_map
    hidden, heads = (
        _positive(chosen.get(aliases.get(word, word)), usual)
        for word, usual in (("hidden_size", 32), ("num_attention_heads", 4))
    )
    settings = {}
    if "multi_query" in known and not chosen.get("multi_query", True):
        known = {**known, "multi_query": False}
    for word, value in _sizes(known, hidden, heads).items():
        field = aliases.get(word, word)
        if field in known:
            settings[field] = value
    for field, value in known.items():
        # Dropout is off in evaluation, except where a model forgets to ask; zero leaves no doubt.
        if "drop" in field and isinstance(value, int | float) and not isinstance(value, bool):
            settings[field] = 0.0
    layers_field = aliases.get("num_hidden_layers", "num_hidden_layers")
    asked = chosen.get(layers_field)
    if not isinstance(asked, int) and settings.get(layers_field, LAYERS) != LAYERS:
        asked = settings[layers_field]
    settings |= _layer_kinds(known, layers_field, _positive(asked, 0) or None)
    return {**settings, **chosen}


def shrink_parts(config_class: Any, chosen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tiny settings of the parts of a decoder that has no layers but theirs, each with
    a configuration of its own; those `chosen` win. Empty for any other decoder."""
    known = fields_of(config_class)
    if config_class.attribute_map.get("num_hidden_layers", "num_hidden_layers") in known:
        return {}
    parts = getattr(config_class, "sub_configs", None) or {}
    found = {}
    for name in sorted(parts.keys() & known.keys()):
        own = chosen.get(name) or {}
        if isinstance(own, Mapping):
            found[name] = shrink_config(parts[name], own)
    return found


def separate_special_tokens(config: Any, chosen: Mapping[str, Any]) -> None:
    """Moves the special tokens of `config` into its vocabulary, and padding out of the way.

    Those that were `chosen` stay. Padding gets the index -1, the last row of an embedding table: no
    drawn token equals it, so a model that counts positions by what is not padding takes every drawn
    token for text.
    """
    for field in [name for name in vars(config) if name.endswith("_token_id")]:
        value = _read(config, field)
        if field in chosen or not isinstance(value, int):
            continue
        if field == "pad_token_id":
            setattr(config, field, -1)
        elif value >= config.vocab_size:
            setattr(config, field, config.vocab_size - 1)


def _positive(value: Any, otherwise: int) -> int:
    """`value` if it is a positive integer; the configuration refuses what is not."""
    return value if isinstance(value, int) and value > 0 else otherwise


def _read(config: Any, name: str) -> Any:
    """Returns a field, None where reading it raises (as fields that differ by layer do)."""
    try:
        return getattr(config, name)
    except Exception:
        return None


# Sizes


def _sizes(known: Mapping[str, Any], hidden: int, heads: int) -> dict[str, Any]:
    """Returns the values of the standard fields for a residual stream `hidden` wide; `known` are
    the fields of the configuration, with their defaults."""
    head_dim = max(1, hidden // heads)
    return {
        **_attention(known, hidden, heads, head_dim),
        **_depth(known),
        **_experts(known),
        **_latent_attention(known, heads, head_dim),
        **_states(known, hidden, head_dim),
        **_encoder_and_decoder(heads),
    }


def _attention(known: Mapping[str, Any], hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    grouped = heads % 2 == 0 and known.get("multi_query", True) is not False
    kv_heads = heads // 2 if grouped else heads
    sizes: dict[str, Any] = {
        "vocab_size": TOKENS,
        "vocab_size_per_layer_input": TOKENS,
        "hidden_size": hidden,
        "hidden_size_per_layer_input": _STATE,
        "hidden_size_global": hidden,
        "encoder_hash_byte_group_vocab": TOKENS,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "rotary_dim": max(2, head_dim // 2),
        # The default suits the default head_dim: in a small model it would flatten attention.
        "query_pre_attn_scalar": head_dim,
        "sliding_window": WINDOW,
        "window_size": WINDOW,
        "attention_chunk_size": WINDOW,
        "local_attention_window_len": WINDOW,
        # With a window in use, the first layer sees everything and the second is windowed.
        "max_window_layers": 1,
        "is_decoder": True,
        "word_embed_proj_dim": hidden,
    }
    sizes |= dict.fromkeys(("num_key_value_heads", "num_kv_heads"), kv_heads)
    sizes |= dict.fromkeys(("max_position_embeddings", "n_ctx", "seq_length"), TOKENS)
    sizes |= dict.fromkeys(("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"), 48)
    return sizes


def _depth(known: Mapping[str, Any]) -> dict[str, Any]:
    """Number of layers, more than LAYERS where layers depend on others."""
    sizes: dict[str, Any] = {"num_hidden_layers": LAYERS}
    if known.get("num_kv_shared_layers"):
        # Of each kind of layer one that keeps its keys, and one that reads them.
        sizes |= {"num_hidden_layers": 2 * LAYERS, "num_kv_shared_layers": LAYERS}
    if "n_recurrent_layers" in known:
        # Layers that run once before and after the ones that run in a loop.
        sizes |= {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1}
        sizes["num_hidden_layers"] = 3
    return sizes


def _experts(known: Mapping[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts"), 4
    )
    sizes |= {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
    sizes |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    for word in ("n_shared_experts", "n_group", "topk_group"):
        if word in known and known[word] is None:
            sizes[word] = 1
    return sizes


def _latent_attention(known: Mapping[str, Any], heads: int, head_dim: int) -> dict[str, Any]:
    """Sizes of attention that keeps keys and values as one narrow vector."""
    if "kv_lora_rank" not in known:
        return {}
    ranks = {word: 16 for word in ("kv_lora_rank", "q_lora_rank") if known.get(word)}
    heads_too = {"num_key_value_heads": heads, "head_dim": head_dim}
    parts = dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), head_dim)
    return {**ranks, **heads_too, **parts, "qk_head_dim": 2 * head_dim}


def _states(known: Mapping[str, Any], hidden: int, head_dim: int) -> dict[str, Any]:
    """Sizes of layers that keep a state in place of keys and values."""
    inner = _EXPAND * hidden
    count = inner // head_dim
    sizes: dict[str, Any] = {
        "mamba_d_ssm": inner,
        "lru_width": hidden,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_num_heads": 4,
        "use_mamba_kernels": False,
    }
    sizes |= dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), _STATE)
    sizes |= dict.fromkeys(("mamba_dt_rank", "time_step_rank"), 4)
    # Short, so that cases get past the end of a chunk.
    sizes |= dict.fromkeys(("chunk_size", "mamba_chunk_size"), _CHUNK)
    sizes |= dict.fromkeys(("expand", "mamba_expand"), _EXPAND)
    sizes |= dict.fromkeys(
        ("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), head_dim
    )
    for width, number in _STATE_HEADS.items():
        if width in known:
            sizes |= {width: head_dim, number: count}
    if "expand" in known and "num_attention_heads" not in known:
        sizes |= {"num_heads": count, "head_dim": head_dim}
    if known.get("n_groups", 0) > 2:
        sizes["n_groups"] = 2
    return sizes


def _encoder_and_decoder(heads: int) -> dict[str, Any]:
    """Sizes of models with an encoder, which has fields of its own."""
    sizes: dict[str, Any] = dict.fromkeys(
        ("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS
    )
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), heads)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 48)
    return sizes


# Kinds of layer

_PERIOD = re.compile(r"(_period|_interval|_pattern|_every_n_layers|_group_size)$")
_INDEX_LISTS = ("attn_layer_indices", "hybrid_layer_ids")
# For models whose default has layers without keys only: the other kind that they may have.
_PARTNER = {"mamba": "attention", "linear_attention": "full_attention"}


def _layer_kinds(known: Mapping[str, Any], layers_field: str, asked: int | None) -> dict[str, Any]:
    """Returns the fields that choose the kind of each layer, cut so that each kind is there, and
    the number of layers that this takes. `asked` is how many the user wants, None for as many as it
    takes; `known` are all fields with their defaults."""
    deep = known.get(layers_field)
    lists = {name: value for name, value in known.items() if _lists_kinds(name, value, deep)}
    most = max([len(_distinct(value)) for value in lists.values()], default=0)
    layers = asked or max(LAYERS, most)
    kept: dict[str, Any] = {name: _cut(value, layers) for name, value in lists.items()}
    for name, value in known.items():
        runs = _cut_runs(value, deep, layers)
        if runs is not None:
            kept[name] = runs
        elif isinstance(value, int) and not isinstance(value, bool):
            kept |= _shorten_period(name, value, known)
        elif name in _INDEX_LISTS:
            kept[name] = [1]
        elif isinstance(value, list | tuple) and name not in lists and "layer" in name:
            kept |= _add_partner(name, value, layers)
    if "conv_L_cache" in known and "layer_types" not in kept:
        # This model reads the kinds only if they are given.
        kept["layer_types"] = _cut(("conv", "full_attention"), layers)
    if most > LAYERS and layers_field in known:
        kept[layers_field] = layers
    return kept


def _add_partner(name: str, value: Any, layers: int) -> dict[str, list[str]]:
    """If all layers are of one kind without keys, adds a kind with keys; else returns nothing."""
    kinds = _distinct(value) if all(isinstance(kind, str) for kind in value) else []
    if len(kinds) != 1 or kinds[0] not in _PARTNER:
        return {}
    return {name: _cut((kinds[0], _PARTNER[kinds[0]]), layers)}


def _lists_kinds(name: str, value: Any, deep: Any) -> bool:
    """Whether a field lists the kind of each layer, or of each in a cycle of layers."""
    if not isinstance(value, list | tuple) or name.startswith("mtp"):
        return False
    if not all(isinstance(kind, str | int | float) for kind in value):
        return False
    named = all(isinstance(kind, str) for kind in value) and ("layer" in name or "block" in name)
    many = len(_distinct(value))
    return many > 1 and (named or (len(value) == deep and many < deep))


def _distinct(value: Any) -> list[Any]:
    return list(dict.fromkeys(value))


def _cut(value: Any, layers: int) -> list[Any]:
    """The first `layers` of `value` if every kind is among them; else the kinds in rotation."""
    kinds, head = _distinct(value), list(value[:layers])
    if len(head) == layers and set(head) == set(kinds):
        return head
    return (kinds * layers)[:layers]


def _cut_runs(value: Any, deep: Any, layers: int) -> list[Any] | None:
    """Cuts a field that gives the kinds of `deep` layers in runs, `[[kinds, times], ...]`, to
    `layers` layers; returns None for any other field."""
    if not isinstance(value, list | tuple) or not value:
        return None
    expanded = []
    for run in value:
        match run:
            case [[*kinds], int(times)]:
                expanded += list(kinds) * times
            case _:
                return None
    if len(expanded) != deep:
        return None
    cycle = -(-layers // len(expanded))
    return [[[kind], 1] for kind in (expanded * cycle)[:layers]]


def _shorten_period(name: str, value: int, known: Mapping[str, Any]) -> dict[str, int]:
    """Makes a kind of layer that comes every `value` layers come every second layer, from the
    second on; returns nothing for a field that is no period."""
    if not _PERIOD.search(name) or value <= LAYERS:
        return {}
    first = name.removesuffix("_period") + "_offset"
    return {name: LAYERS} | ({first: LAYERS - 1} if first in known else {})
