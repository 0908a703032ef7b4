"""The table of faults: each changes a line of a model's file or of the library's cache or mask code
so that one path is wrong, the cached one of nearly all.

A fault tells that the cache holds something by asking it, where it is in reach; elsewhere by having
one token alone, or fewer queries than keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Entry, Padded, Reorder
from tests.quality.injected.copies import CACHE, MASKS, Anchor, Edit

ARCHITECTURES: Mapping[str, str] = {
    "llama": "rotary, grouped heads",
    "gpt_neox": "partly rotary, parallel",
    "gpt2": "learned positions",
    "bloom": "ALiBi",
    "mpt": "ALiBi",
    "gemma2": "window every other layer",
    "mistral": "window",
    "lfm2": "convolution, attention",
    "falcon_h1": "state space, attention",
}


@dataclass(frozen=True)
class Fault:
    """One fault, of a `kind`, in the copied code of `model`; `path` is the one that is wrong.

    `schedule` shows it, fed to so many `rows` through a kind of `cache`, with what is `given` to
    every call. Where the fault's own line computes nothing that differs, `reaches` is the line
    where a value first does. Those `in_tests` are the few that the tests locate;
    `benchmarks/locating.py` locates all.
    """

    id: str
    model: str
    kind: str
    edits: tuple[Edit, ...]
    reaches: Anchor | None = None
    schedule: tuple[Entry, ...] = (3, 1)
    rows: int = 1
    attn: str = "eager"
    cache: str = "dynamic"
    given: tuple[str, ...] = ()
    path: Literal["cached", "uncached"] = "cached"
    in_tests: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}.{self.id}"

    def case(self, config: Mapping[str, Any]) -> Case:
        """The case that shows it, of different tokens throughout."""
        length = sum(map(_columns, self.schedule))
        tokens = [
            [(11 * row + 7 * at + 3) % 64 for at in range(length)] for row in range(self.rows)
        ]
        return Case(tuple(map(tuple, tokens)), self.schedule, 1, "float64", config, self.given)


def _columns(entry: Entry) -> int:
    """How many tokens of a row an entry of a schedule takes."""
    if isinstance(entry, Padded):
        return entry.size
    return entry if isinstance(entry, int) else 0


def _fault(
    name: str, kind: str, at: Anchor | str, becomes: str, *more: Edit, **settings: Any
) -> Fault:
    """The fault `model.id` by which what stands `at` an anchor `becomes` other text."""
    model, fault = name.split(".")
    anchor = Anchor(at) if isinstance(at, str) else at
    return Fault(fault, model, kind, (Edit(anchor, becomes), *more), **settings)


def _if(condition: str, wrong: str, right: str) -> str:
    return f"({wrong} if {condition} else {right})"


WARM = "cache is not None and cache.get_seq_length(self.layer_idx) > 0"
DECODE = "hidden_states.shape[1] == 1"
FEWER = "query.shape[2] < key.shape[2]"
UPDATE = "cache.update(key_states, value_states, self.layer_idx, kwargs=kwargs)"
POSITIONS = "device=inputs_embeds.device) + past_seen_tokens"
ROTATED = "apply_rotary_pos_emb(query_states, key_states, cos, sin)"
SCORES = "torch.matmul(query, key_states.transpose(2, 3)) * scaling"
VALUES = "self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)"
APPENDED = Anchor("self.keys = torch.cat([self.keys, key_states], dim=-2)", CACHE, 1, 2)
ATTENDED = Anchor("attn_output, attn_weights = attention_interface(")

LLAMA = (
    _fault(
        "llama.position_one_too_far",
        "position",
        POSITIONS,
        f"{POSITIONS} + (past_seen_tokens > 0)",
        in_tests=True,
    ),
    _fault(
        "llama.position_restarts_at_each_call",
        "position",
        "past_seen_tokens = cache.get_seq_length() if cache is not None else 0",
        "past_seen_tokens = 0",
        reaches=Anchor(POSITIONS),
        in_tests=True,
    ),
    _fault(
        "llama.rotation_sine_for_cosine",
        "rotation",
        "cos, sin = position_embeddings",
        f"cos, sin = position_embeddings[:: {_if(WARM, '-1', '1')}]",
        reaches=Anchor("cos = cos.unsqueeze(unsqueeze_dim)"),
    ),
    _fault(
        "llama.rotation_scaled",
        "rotation",
        ROTATED,
        ROTATED.replace("cos", f"cos * {_if(WARM, '1.001', '1')}"),
    ),
    _fault(
        "llama.rotation_table_scaled",
        "rotation",
        "sin = emb.sin() * self.attention_scaling",
        f"sin = emb.sin() * {_if('x.shape[1] == 1', '1.001', 'self.attention_scaling')}",
    ),
    _fault(
        "llama.keys_appended_before_rotation",
        "order",
        ROTATED,
        _if(WARM, f"({ROTATED}[0], key_states)", ROTATED),
        reaches=APPENDED,
        in_tests=True,
    ),
    _fault(
        "llama.layers_swapped",
        "wrong layer",
        UPDATE,
        UPDATE.replace("self.layer_idx", f"self.layer_idx ^ {_if(WARM, '1', '0')}"),
        reaches=APPENDED,
        in_tests=True,
    ),
    _fault(
        "llama.layer_below_read",
        "wrong layer",
        Anchor("            key_states,", nth=2, of=2),
        f"            {_if('cache is not None', 'cache.layers[0].keys', 'key_states')},",
        reaches=Anchor("hidden_states = hidden_states[:, :, None, :, :].expand("),
    ),
    _fault(
        "llama.keys_rolled_by_a_slot",
        "order",
        SCORES,
        SCORES.replace("key_states", f"key_states.roll({_if(FEWER, '1', '0')}, 2)"),
        in_tests=True,
    ),
    _fault(
        "llama.new_value_dropped",
        "append",
        UPDATE,
        UPDATE.replace("value_states", f"value_states * {_if(WARM, '0', '1')}"),
    ),
    _fault("llama.new_value_doubled", "append", VALUES, f"{VALUES} * {_if(WARM, '2', '1')}"),
    _fault(
        "llama.heads_tiled",
        "head grouping",
        "key_states = repeat_kv(key, module.num_key_value_groups)",
        "key_states = "
        + _if(FEWER, "key.repeat(1, 2, 1, 1)", "repeat_kv(key, module.num_key_value_groups)"),
        in_tests=True,
    ),
    _fault("llama.scores_scaled", "scale", SCORES, f"{SCORES} * {_if(FEWER, '1.001', '1')}"),
    _fault(
        "llama.scale_given_to_the_kernel",
        "scale",
        "scaling=self.scaling,",
        "scaling=self.scaling * (query_states.shape[2] / key_states.shape[2]) ** 0.01,",
        reaches=ATTENDED,
        attn="sdpa",
    ),
    _fault(
        "llama.keys_rounded",
        "precision",
        UPDATE,
        UPDATE.replace("key_states,", "key_states.half().to(key_states.dtype),"),
    ),
    _fault(
        "llama.rows_crossed",
        "rows",
        UPDATE,
        UPDATE.replace("value_states", f"value_states.roll({_if(WARM, '1', '0')}, 0)"),
        rows=2,
    ),
    _fault(
        "llama.chunk_unmasked",
        "mask",
        "if attention_mask is not None:",
        f"if attention_mask is not None and not {FEWER}:",
        reaches=Anchor("attn_weights = nn.functional.softmax("),
        schedule=(3, 2),
        in_tests=True,
    ),
    _fault(
        "llama.slot_overwritten",
        "append",
        Anchor("torch.arange(kv_length, device=self.device) + self.cumulative_length", CACHE, 1, 2),
        "torch.arange(kv_length, device=self.device) + (self.cumulative_length - 1).clamp(0)",
        cache="static",
    ),
    _fault(
        "llama.padding_seen_later",
        "padding",
        Anchor("if padding_mask is not None:", MASKS),
        "if padding_mask is not None and q_offset == 0:",
        reaches=Anchor("attention_mask = attention_mask.expand(", MASKS),
        schedule=(Padded(4, "left", (2,)), 1),
        given=("mask", "positions"),
    ),
    _fault(
        "llama.residual_skipped",
        "residual",
        Anchor("residual + hidden_states", nth=1, of=2),
        _if(DECODE, "hidden_states", "residual + hidden_states"),
        reaches=Anchor("hidden_states = hidden_states.to(torch.float32)"),
    ),
    _fault(
        "llama.mlp_without_activation",
        "mlp",
        "self.act_fn(self.gate_proj(x))",
        _if("x.shape[1] == 1", "self.gate_proj(x)", "self.act_fn(self.gate_proj(x))"),
    ),
    _fault(
        "llama.norm_of_another_epsilon",
        "norm",
        "torch.rsqrt(variance + self.variance_epsilon)",
        f"torch.rsqrt(variance + {_if(DECODE, '1e-3', 'self.variance_epsilon')})",
        in_tests=True,
    ),
    _fault(
        "llama.final_norm_skipped",
        "norm",
        "self.norm(hidden_states)",
        _if("past_seen_tokens", "hidden_states", "self.norm(hidden_states)"),
        reaches=Anchor("hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep)"),
    ),
    _fault(
        "llama.logits_scaled",
        "readout",
        "logits = self.lm_head(hidden_states)",
        f"logits = self.lm_head(hidden_states) * {_if(DECODE, '1.001', '1')}",
    ),
)

GPT2 = (
    _fault(
        "gpt2.position_one_too_far",
        "position",
        POSITIONS,
        f"{POSITIONS} + (past_seen_tokens > 0)",
        in_tests=True,
    ),
    _fault(
        "gpt2.position_dropped",
        "position",
        "position_embeds.to(inputs_embeds.device)",
        f"position_embeds * {_if('past_seen_tokens', '0', '1')}",
    ),
    _fault(
        "gpt2.keys_and_values_swapped",
        "append",
        "key_states, value_states, self.layer_idx, kwargs=kwargs)",
        "*(key_states, value_states)[:: "
        + _if("curr_cache.get_seq_length(self.layer_idx)", "-1", "1")
        + "], self.layer_idx, kwargs=kwargs)",
        reaches=APPENDED,
    ),
    _fault(
        "gpt2.norm_skipped",
        "norm",
        "self.ln_1(hidden_states)",
        _if(DECODE, "hidden_states", "self.ln_1(hidden_states)"),
        reaches=Anchor("query_states, key_states, value_states = self.c_attn(hidden_states)"),
    ),
    _fault(
        "gpt2.residual_doubled",
        "residual",
        "hidden_states = attn_output + residual",
        f"hidden_states = attn_output + residual * {_if(DECODE, '2', '1')}",
    ),
    _fault(
        "gpt2.mlp_activated_twice",
        "mlp",
        "hidden_states = self.act(hidden_states)",
        "hidden_states = self.act(" + _if(DECODE, "self.act(hidden_states)", "hidden_states") + ")",
    ),
    _fault(
        "gpt2.mask_one_short",
        "mask",
        Anchor("torch.arange(q_length, device=device) + q_offset", MASKS),
        "torch.arange(q_length, device=device) + q_offset - int(q_offset > 0)",
        in_tests=True,
    ),
    _fault(
        "gpt2.crop_keeps_one",
        "crop",
        Anchor("self.keys[..., : -abs(tokens_to_remove), :]", CACHE),
        "self.keys[..., : 1 - abs(tokens_to_remove), :]",
        Edit(
            Anchor("self.values[..., : -abs(tokens_to_remove), :]", CACHE),
            "self.values[..., : 1 - abs(tokens_to_remove), :]",
        ),
        schedule=(4, Crop(2), 2),
    ),
    _fault(
        "gpt2.chunk_unmasked_in_the_kernel",
        "mask",
        "                causal_mask,",
        f"                {_if('past_seen_tokens', 'None', 'causal_mask')},",
        reaches=ATTENDED,
        schedule=(3, 2),
        attn="sdpa",
    ),
)

ALIBI = (
    _fault(
        "bloom.bias_rolled",
        "ALiBi",
        "torch.arange(kv_length, device=hidden_states.device)",
        "torch.arange(kv_length, device=hidden_states.device).roll(int(past_length > 0))",
        in_tests=True,
    ),
    _fault(
        "bloom.slopes_of_other_heads",
        "ALiBi",
        "_get_alibi_slopes(self.num_heads, hidden_states.device)",
        "_get_alibi_slopes(self.num_heads, hidden_states.device).roll(int(past_length > 0))",
    ),
    _fault(
        "bloom.scores_scaled",
        "scale",
        "alpha=self.inv_norm_factor,",
        f"alpha=self.inv_norm_factor * {_if('q_length == 1', '1.001', '1')},",
        reaches=Anchor("attention_scores = alibi.baddbmm("),
    ),
    _fault(
        "bloom.query_for_key",
        "append",
        "key_layer = fused_qkv[..., 1, :]",
        f"key_layer = fused_qkv[..., {_if('seq_length == 1', '0', '1')}, :]",
    ),
    _fault(
        "bloom.embedding_norm_skipped",
        "norm",
        "self.word_embeddings_layernorm(inputs_embeds)",
        _if("past_length", "inputs_embeds", "self.word_embeddings_layernorm(inputs_embeds)"),
        reaches=Anchor("layernorm_output = self.input_layernorm(hidden_states)"),
    ),
    _fault(
        "bloom.activation_constant",
        "mlp",
        "torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))",
        f"torch.tanh({_if('x.shape[1] == 1', '0.8', '0.79788456')} * x * (1 + 0.044715 * x * x)))",
    ),
    _fault(
        "bloom.residual_halved",
        "residual",
        "out = residual + out",
        f"out = residual * {_if('x.shape[1] == 1', '0.5', '1')} + out",
    ),
    _fault(
        "bloom.rows_crossed",
        "rows",
        "value_layer = value_layer.reshape(",
        f"value_layer = value_layer.roll({_if('q_length == 1', '1', '0')}, 0).reshape(",
        rows=2,
    ),
    _fault(
        "mpt.bias_backwards",
        "ALiBi",
        "position_bias = position_bias[:, position_bias_query_index:, position_bias_key_index:]",
        "position_bias = position_bias[:, position_bias_query_index:, position_bias_key_index:]"
        f".flip({_if('seq_length == 1', '2', '1')})",
    ),
)

WINDOWED = (
    _fault(
        "gemma2.window_one_short",
        "window",
        Anchor("return kv_idx > q_idx - sliding_window", MASKS),
        f"return kv_idx > q_idx - sliding_window + {_if('q_idx.numel() == 1', '1', '0')}",
        schedule=(7, 1),
        in_tests=True,
    ),
    _fault(
        "gemma2.window_counted_one_on",
        "window",
        Anchor("kv_offset = max(self.cumulative_length - self.sliding_window + 1, 0)", CACHE),
        "kv_offset = max(self.cumulative_length - self.sliding_window + 1, 0) + is_full",
        reaches=Anchor("kv_arange = torch.arange(kv_length, device=device) + kv_offset", MASKS),
        schedule=(7, 1),
    ),
    _fault(
        "gemma2.window_values_rolled",
        "order",
        Anchor("full_value_states[:, :, -self.sliding_window + 1 :, :]", CACHE),
        "full_value_states[:, :, -self.sliding_window + 1 :, :].roll(1, 2)",
        schedule=(4, 1),
    ),
    _fault(
        "gemma2.softcap_skipped",
        "scale",
        "if softcap is not None:",
        f"if softcap is not None and not {FEWER}:",
        reaches=Anchor("attn_weights = attn_weights + attention_mask"),
    ),
    _fault(
        "gemma2.norm_gain",
        "norm",
        "output = output * (1.0 + self.weight.float())",
        f"output = output * ({_if('x.shape[1] == 1', '0.0', '1.0')} + self.weight.float())",
    ),
    _fault(
        "gemma2.post_norm_skipped",
        "norm",
        "self.post_attention_layernorm(hidden_states)",
        _if(DECODE, "hidden_states", "self.post_attention_layernorm(hidden_states)"),
        reaches=Anchor("hidden_states = residual + hidden_states", nth=1, of=2),
    ),
    _fault(
        "gemma2.embedding_unscaled",
        "embedding",
        "super().forward(input_ids) * self.embed_scale",
        f"super().forward(input_ids) * {_if('input_ids.shape[1] == 1', '1', 'self.embed_scale')}"
        " * torch.ones_like(self.embed_scale)",
    ),
    _fault(
        "gemma2.final_softcap_skipped",
        "readout",
        "logits = torch.tanh(logits)",
        f"logits = {_if('logits.shape[1] == 1', 'logits', 'torch.tanh(logits)')}",
        reaches=Anchor("logits = logits * self.config.final_logit_softcapping"),
    ),
    _fault(
        "mistral.new_key_doubled",
        "append",
        UPDATE,
        UPDATE.replace("key_states", f"key_states * {_if(WARM, '2', '1')}"),
        schedule=(3, 1, 1),
    ),
    _fault(
        "mistral.chunk_sees_one_ahead",
        "mask",
        Anchor("return kv_idx <= q_idx", MASKS),
        "return kv_idx <= q_idx + int(q_idx.numel() < kv_idx.numel())",
        schedule=(3, 2),
    ),
)

NEOX = (
    _fault(
        "gpt_neox.rotated_part_misplaced",
        "rotation",
        "k_embed = torch.cat([k_embed, k_pass], dim=-1)",
        f"k_embed = torch.cat([k_embed, k_pass][:: {_if('k.shape[2] == 1', '-1', '1')}], dim=-1)",
    ),
    _fault(
        "gpt_neox.rotation_backwards",
        "rotation",
        "return torch.cat((-x2, x1), dim=-1)",
        f"return torch.cat({_if('x.shape[2] == 1', '(x2, -x1)', '(-x2, x1)')}, dim=-1)",
    ),
    _fault(
        "gpt_neox.attention_left_out",
        "residual",
        "hidden_states = mlp_output + attn_output + hidden_states",
        f"hidden_states = mlp_output + attn_output * {_if(DECODE, '0', '1')} + hidden_states",
    ),
)

RECURRENT = (
    _fault(
        "lfm2.convolution_state_not_rolled",
        "recurrent state",
        "conv_state.copy_(hidden_states_new[:, :, -state_len:])",
        "conv_state.copy_(hidden_states_new[:, :, :state_len])",
        schedule=(4, 1, 1),
        in_tests=True,
    ),
    _fault(
        "lfm2.convolution_reversed",
        "convolution",
        "out = F.conv1d(hidden_states_new, weight.unsqueeze(1)",
        "out = F.conv1d(hidden_states_new, weight.flip(-1).unsqueeze(1)",
    ),
    _fault(
        "lfm2.short_prompt_at_the_wrong_end",
        "recurrent state",
        Anchor("(padding_length, 0), value=0)", CACHE),
        "(0, padding_length), value=0)",
        schedule=(2, 1),
    ),
    _fault(
        "lfm2.chunk_forgets_the_convolution",
        "recurrent state",
        Anchor("torch.cat([self.conv_states[state_idx], conv_states], dim=-1)", CACHE),
        "torch.cat([self.conv_states[state_idx] * 0, conv_states], dim=-1)",
        schedule=(3, 2),
    ),
    _fault(
        "lfm2.gate_skipped",
        "mlp",
        "y = C * hidden_states",
        f"y = {_if('seq_len == 1', 'hidden_states', 'C * hidden_states')}",
        reaches=Anchor("y = y.transpose(-1, -2).contiguous()"),
    ),
    _fault(
        "lfm2.key_norm_skipped",
        "norm",
        "self.k_layernorm(self.k_proj(hidden_states).view(*hidden_shape))",
        _if(WARM, "torch.clone", "self.k_layernorm")
        + "(self.k_proj(hidden_states).view(*hidden_shape))",
    ),
    _fault(
        "lfm2.reorder_leaves_the_convolution",
        "reorder",
        Anchor("self.conv_states[i].index_select(0, beam_idx.to(self.device))", CACHE),
        "self.conv_states[i].clone()",
        schedule=(3, Reorder((1, 0)), 1),
        rows=2,
    ),
    _fault(
        "falcon_h1.state_decays_twice",
        "recurrent state",
        "ssm_states = state * dA + dBx",
        "ssm_states = state * dA * dA + dBx",
    ),
    _fault(
        "falcon_h1.state_not_updated",
        "recurrent state",
        "state.copy_(ssm_states.to(state.dtype))",
        "state.copy_(state.clone())",
        schedule=(3, 1, 1),
    ),
    _fault(
        "falcon_h1.chunk_forgets_the_state",
        "recurrent state",
        "initial_states=recurrent_state,",
        "initial_states=None,",
        reaches=Anchor("else torch.zeros_like(states[:, :1])"),
        schedule=(3, 2),
    ),
    _fault(
        "falcon_h1.state_stored_scaled",
        "recurrent state",
        "cache.update_recurrent_state(ssm_state, self.layer_idx)",
        "cache.update_recurrent_state(ssm_state * 0.99, self.layer_idx)",
        in_tests=True,
    ),
    _fault(
        "falcon_h1.time_step_without_bias",
        "recurrent state",
        Anchor("dt = dt + dt_bias.to(dt.dtype)", nth=1, of=2),
        "dt = dt + 0 * dt_bias.to(dt.dtype)",
    ),
    _fault(
        "falcon_h1.skip_connection_doubled",
        "residual",
        "out = (out + hidden_states * D).to(out.dtype)",
        "out = (out + 2 * hidden_states * D).to(out.dtype)",
    ),
)

UNCACHED = (
    _fault(
        "llama.uncached_without_a_mask",
        "uncached path",
        "attention_mask=causal_mask,",
        f"attention_mask=causal_mask * {_if('cache is None', '0', '1')},",
        path="uncached",
        in_tests=True,
    ),
    _fault(
        "gpt2.uncached_mean_over_the_row",
        "uncached path",
        "self.ln_f(hidden_states)",
        "self.ln_f(hidden_states - hidden_states.mean(1, True) * "
        f"{_if('cache is None', '1', '0')})",
        path="uncached",
    ),
    _fault(
        "lfm2.uncached_looks_ahead",
        "uncached path",
        "hidden_states = B * x",
        f"hidden_states = B * x.roll({_if('cache is None', '-1', '0')}, -1)",
        path="uncached",
    ),
)

FAULTS = (*LLAMA, *GPT2, *ALIBI, *WINDOWED, *NEOX, *RECURRENT, *UNCACHED)
