"""Fills in the arguments of a tiny model, for libraries whose models take a dataclass.

No model is named here. A field whose name is a size gets a small value. Another field without a
default is filled by its type, unless that would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from kvfuzz.errors import UsageError, did_you_mean

WINDOW = 6
LAYERS = 2
MOST_TOKENS = 64
_HIDDEN, _HEADS = 32, 4

_WIDTHS = ("hidden_size", "n_embd", "d_model", "hidden_dim", "model_dim", "block_dim", "dim")
_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LENGTHS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    *("model_max_length", "block_size"),
)


def fill_fields(arguments: type[Any], settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the values that make a tiny model of the dataclass `arguments`; `settings` win.

    Raises UsageError for a setting that is no field, and for a field that has to be set.
    """
    known = {field.name: field for field in fields(arguments) if field.init}
    for word in settings:
        if word not in known:
            raise UsageError(f"{name} has no setting {word!r}{did_you_mean(word, known)}")
    sizes = _sizes(*(_chosen(settings, words) for words in (_WIDTHS, _COUNTS)))
    found = dict(settings)
    for word, field in known.items():
        if word in settings:
            continue
        if word in sizes and _is_integer(field):
            found[word] = sizes[word]
        elif field.default is MISSING and field.default_factory is MISSING:
            found[word] = _by_type(field, name)
    return found


def first_count(thing: Any, words: tuple[str, ...]) -> int | None:
    """Returns the first of the attributes `words` of `thing` that is a positive integer."""
    values = (getattr(thing, word, None) for word in words)
    return next((v for v in values if isinstance(v, int) and v > 0), None)


def width_of(arguments: Any) -> int | None:
    """Returns the size of the residual stream, None if no field has it."""
    return first_count(arguments, _WIDTHS)


def _sizes(hidden: int | None, heads: int | None) -> dict[str, int]:
    """Returns the values of the fields for sizes, for a residual stream `hidden` wide."""
    hidden, heads = hidden or _HIDDEN, heads or _HEADS
    head_dim = max(1, hidden // heads)
    return dict(_each(
        (_WIDTHS, hidden),
        (_COUNTS, heads),
        (LENGTHS, MOST_TOKENS),
        (("vocab_size", "d_vocab"), MOST_TOKENS),
        (("num_hidden_layers", "num_layers", "n_layer", "n_layers"), LAYERS),
        (("num_transformer_layers",), LAYERS),
        (("num_key_value_heads", "num_kv_heads", "n_kv_heads"), max(1, heads // 2)),
        # The default suits the default head_dim: in a small model it would flatten attention.
        (("head_dim", "d_head", "query_pre_attn_scalar", "v_head_dim", "kv_channels"), head_dim),
        (("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim"), max(2, head_dim // 2)),
        (("q_lora_rank", "kv_lora_rank"), hidden // 2),
        (("intermediate_size", "n_inner", "ffn_hidden_size", "d_mlp"), 48),
        (("intermediate_size_mlp", "shared_intermediate_size", "block_ff_dim"), 48),
        (("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
        (("expert_ffn_hidden_size", "moe_shared_expert_intermediate_size"), 16),
        (("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
        (("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token"), 2),
        (("n_shared_experts", "num_shared_experts", "num_shared_expert"), 1),
        (("n_group", "topk_group", "n_groups", "decoder_sparse_step"), 1),
        (("first_k_dense_replace", "num_dense_layers", "num_kv_shared_layers"), 1),
        (("sliding_window", "sliding_window_size", "window_size"), WINDOW),
        (("attention_window_size", "chunk_size", "attention_chunk_size"), WINDOW),
        # Every second layer sees everything.
        (("sliding_window_pattern", "layer_group_size", "attn_layer_period"), 2),
        (("full_attention_interval", "expert_layer_period"), 2),
        (("attn_layer_offset", "expert_layer_offset"), 1),
        (("conv_kernel", "conv_L_cache", "conv_window", "mamba_d_conv", "conv1d_width"), 3),
        (("linear_conv_kernel_dim", "d_conv"), 3),
        (("state_size", "ssm_state_size", "mamba_d_state", "time_step_rank", "mamba_dt_rank"), 8),
        (("a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"), 8),
        (("linear_num_value_heads", "linear_num_key_heads"), 2),
        (("linear_key_head_dim", "linear_value_head_dim"), 8),
    ))  # fmt: skip


def _each(*groups: tuple[tuple[str, ...], int]) -> Iterator[tuple[str, int]]:
    for words, value in groups:
        for word in words:
            yield word, value


def _chosen(settings: Mapping[str, Any], words: tuple[str, ...]) -> int | None:
    values = (settings.get(word) for word in words)
    return next((v for v in values if isinstance(v, int) and v > 0), None)


def _type_of(field: Field[Any]) -> str:
    """Returns the annotation of a field, as written."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def _is_integer(field: Field[Any]) -> bool:
    """Whether a field takes an integer. If its default is something else, its name does not mean a
    size."""
    if isinstance(field.default, bool | str | list | tuple):
        return False
    return "int" in _type_of(field) and "List" not in _type_of(field)


def _by_type(field: Field[Any], name: str) -> Any:
    """Returns a value for a field without a default. Raises UsageError if it would be a guess."""
    kind = _type_of(field)
    if "Optional" in kind or "None" in kind:
        return None
    if "bool" in kind and "List" not in kind:
        return False
    if kind == "float":
        return 1e-5 if "eps" in field.name else 1e4 if "theta" in field.name else 1.0
    raise UsageError(f"{name} needs {field.name} ({kind}): set it by --config")
