"""How small the fields of a tiny configuration are, by the names that configurations share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WINDOW = 6
LAYERS = 2
TOKENS = 64
_STATE, _CHUNK, _EXPAND = 8, 4, 2
_HEADS_OF_STATES = {
    "mamba_d_head": "mamba_n_heads",
    "mamba_headdim": "n_mamba_heads",
    "mamba_head_dim": "mamba_num_heads",
}
"""How wide the heads of a state are, and how many there are, by the names that these go by."""


def sizes_of(known: Mapping[str, Any], hidden: int, heads: int) -> dict[str, Any]:
    """What the standard fields are set to, for a residual stream `hidden` wide; `known` are the
    fields that there are, with their defaults."""
    head_dim = max(1, hidden // heads)
    return {
        **_attention(known, hidden, heads, head_dim),
        **_depth(known),
        **_experts(known),
        **_latent(known, heads, head_dim),
        **_states(known, hidden, head_dim),
        **_halves(heads),
    }


def _attention(known: Mapping[str, Any], hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    grouped = heads % 2 == 0 and known.get("multi_query", True) is not False
    kv_heads = heads // 2 if grouped else heads
    sizes: dict[str, Any] = {
        "vocab_size": TOKENS,
        "vocab_size_per_layer_input": TOKENS,
        "hidden_size": hidden,
        "hidden_size_per_layer_input": _STATE,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "rotary_dim": max(2, head_dim // 2),
        # The default suits the default head_dim: in a small model it would flatten attention.
        "query_pre_attn_scalar": head_dim,
        "sliding_window": WINDOW,
        "window_size": WINDOW,
        "attention_chunk_size": WINDOW,
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
    """Of models with layers that need others."""
    sizes: dict[str, Any] = {"num_hidden_layers": LAYERS}
    if known.get("num_kv_shared_layers"):
        # Of each kind of layer one that keeps its keys, and one that reads them.
        sizes |= {"num_hidden_layers": 2 * LAYERS, "num_kv_shared_layers": LAYERS}
    if "n_recurrent_layers" in known:
        # Those that run once before and after the ones that run in a loop.
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


def _latent(known: Mapping[str, Any], heads: int, head_dim: int) -> dict[str, Any]:
    """Of attention whose keys and values are kept as one narrow vector."""
    if "kv_lora_rank" not in known:
        return {}
    ranks = {word: 16 for word in ("kv_lora_rank", "q_lora_rank") if known.get(word)}
    heads_too = {"num_key_value_heads": heads, "head_dim": head_dim}
    parts = dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), head_dim)
    return {**ranks, **heads_too, **parts, "qk_head_dim": 2 * head_dim}


def _states(known: Mapping[str, Any], hidden: int, head_dim: int) -> dict[str, Any]:
    """Of layers that keep a state in place of keys and values."""
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
    # Cases are to get past the end of a chunk.
    sizes |= dict.fromkeys(("chunk_size", "mamba_chunk_size"), _CHUNK)
    sizes |= dict.fromkeys(("expand", "mamba_expand"), _EXPAND)
    sizes |= dict.fromkeys(
        ("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), head_dim
    )
    for width, number in _HEADS_OF_STATES.items():
        if width in known:
            sizes |= {width: head_dim, number: count}
    if "expand" in known and "num_attention_heads" not in known:
        sizes |= {"num_heads": count, "head_dim": head_dim}
    if known.get("n_groups", 0) > 2:
        sizes["n_groups"] = 2
    return sizes


def _halves(heads: int) -> dict[str, Any]:
    """Of models with an encoder, whose fields tell the halves apart."""
    sizes: dict[str, Any] = dict.fromkeys(
        ("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS
    )
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), heads)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 48)
    return sizes
