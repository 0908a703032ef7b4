"""Faults of other models with attention."""

from kvfuzz.case.schedule import Crop
from tests.quality.injected.copies import CACHE, MASKS, Anchor, Edit
from tests.quality.injected.fault import (
    APPENDED,
    ATTENDED,
    DECODE,
    FEWER,
    POSITIONS,
    UPDATE,
    WARM,
    either,
    fault,
)

GPT2 = (
    fault(
        "gpt2.position_one_too_far",
        "position",
        POSITIONS,
        f"{POSITIONS} + (past_seen_tokens > 0)",
        in_tests=True,
    ),
    fault(
        "gpt2.position_dropped",
        "position",
        "position_embeds.to(inputs_embeds.device)",
        f"position_embeds * {either('past_seen_tokens', '0', '1')}",
    ),
    fault(
        "gpt2.keys_and_values_swapped",
        "append",
        "key_states, value_states, self.layer_idx, kwargs=kwargs)",
        "*(key_states, value_states)[:: "
        + either("curr_cache.get_seq_length(self.layer_idx)", "-1", "1")
        + "], self.layer_idx, kwargs=kwargs)",
        reaches=APPENDED,
    ),
    fault(
        "gpt2.norm_skipped",
        "norm",
        "self.ln_1(hidden_states)",
        either(DECODE, "hidden_states", "self.ln_1(hidden_states)"),
        reaches=Anchor("query_states, key_states, value_states = self.c_attn(hidden_states)"),
    ),
    fault(
        "gpt2.residual_doubled",
        "residual",
        "hidden_states = attn_output + residual",
        f"hidden_states = attn_output + residual * {either(DECODE, '2', '1')}",
    ),
    fault(
        "gpt2.mlp_activated_twice",
        "mlp",
        "hidden_states = self.act(hidden_states)",
        "hidden_states = self.act("
        + either(DECODE, "self.act(hidden_states)", "hidden_states")
        + ")",
    ),
    fault(
        "gpt2.mask_one_short",
        "mask",
        Anchor("torch.arange(q_length, device=device) + q_offset", MASKS),
        "torch.arange(q_length, device=device) + q_offset - int(q_offset > 0)",
        in_tests=True,
    ),
    fault(
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
    fault(
        "gpt2.chunk_unmasked_in_the_kernel",
        "mask",
        "                causal_mask,",
        f"                {either('past_seen_tokens', 'None', 'causal_mask')},",
        reaches=ATTENDED,
        schedule=(3, 2),
        attn="sdpa",
    ),
)

ALIBI = (
    fault(
        "bloom.bias_rolled",
        "ALiBi",
        "torch.arange(kv_length, device=hidden_states.device)",
        "torch.arange(kv_length, device=hidden_states.device).roll(int(past_length > 0))",
        in_tests=True,
    ),
    fault(
        "bloom.slopes_of_other_heads",
        "ALiBi",
        "_get_alibi_slopes(self.num_heads, hidden_states.device)",
        "_get_alibi_slopes(self.num_heads, hidden_states.device).roll(int(past_length > 0))",
    ),
    fault(
        "bloom.scores_scaled",
        "scale",
        "alpha=self.inv_norm_factor,",
        f"alpha=self.inv_norm_factor * {either('q_length == 1', '1.001', '1')},",
        reaches=Anchor("attention_scores = alibi.baddbmm("),
    ),
    fault(
        "bloom.query_for_key",
        "append",
        "key_layer = fused_qkv[..., 1, :]",
        f"key_layer = fused_qkv[..., {either('seq_length == 1', '0', '1')}, :]",
    ),
    fault(
        "bloom.embedding_norm_skipped",
        "norm",
        "self.word_embeddings_layernorm(inputs_embeds)",
        either("past_length", "inputs_embeds", "self.word_embeddings_layernorm(inputs_embeds)"),
        reaches=Anchor("layernorm_output = self.input_layernorm(hidden_states)"),
    ),
    fault(
        "bloom.activation_constant",
        "mlp",
        "torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))",
        f"torch.tanh({either('x.shape[1] == 1', '0.8', '0.79788456')} "
        "* x * (1 + 0.044715 * x * x)))",
    ),
    fault(
        "bloom.residual_halved",
        "residual",
        "out = residual + out",
        f"out = residual * {either('x.shape[1] == 1', '0.5', '1')} + out",
    ),
    fault(
        "bloom.rows_crossed",
        "rows",
        "value_layer = value_layer.reshape(",
        f"value_layer = value_layer.roll({either('q_length == 1', '1', '0')}, 0).reshape(",
        rows=2,
    ),
    fault(
        "mpt.bias_backwards",
        "ALiBi",
        "position_bias = position_bias[:, position_bias_query_index:, position_bias_key_index:]",
        "position_bias = position_bias[:, position_bias_query_index:, position_bias_key_index:]"
        f".flip({either('seq_length == 1', '2', '1')})",
    ),
)

WINDOWED = (
    fault(
        "gemma2.window_one_short",
        "window",
        Anchor("return kv_idx > q_idx - sliding_window", MASKS),
        f"return kv_idx > q_idx - sliding_window + {either('q_idx.numel() == 1', '1', '0')}",
        schedule=(7, 1),
        in_tests=True,
    ),
    fault(
        "gemma2.window_counted_one_on",
        "window",
        Anchor("kv_offset = max(self.cumulative_length - self.sliding_window + 1, 0)", CACHE),
        "kv_offset = max(self.cumulative_length - self.sliding_window + 1, 0) + is_full",
        reaches=Anchor("kv_arange = torch.arange(kv_length, device=device) + kv_offset", MASKS),
        schedule=(7, 1),
    ),
    fault(
        "gemma2.window_values_rolled",
        "order",
        Anchor("full_value_states[:, :, -self.sliding_window + 1 :, :]", CACHE),
        "full_value_states[:, :, -self.sliding_window + 1 :, :].roll(1, 2)",
        schedule=(4, 1),
    ),
    fault(
        "gemma2.softcap_skipped",
        "scale",
        "if softcap is not None:",
        f"if softcap is not None and not {FEWER}:",
        reaches=Anchor("attn_weights = attn_weights + attention_mask"),
    ),
    fault(
        "gemma2.norm_gain",
        "norm",
        "output = output * (1.0 + self.weight.float())",
        f"output = output * ({either('x.shape[1] == 1', '0.0', '1.0')} + self.weight.float())",
    ),
    fault(
        "gemma2.post_norm_skipped",
        "norm",
        "self.post_attention_layernorm(hidden_states)",
        either(DECODE, "hidden_states", "self.post_attention_layernorm(hidden_states)"),
        reaches=Anchor("hidden_states = residual + hidden_states", nth=1, of=2),
    ),
    fault(
        "gemma2.embedding_unscaled",
        "embedding",
        "super().forward(input_ids) * self.embed_scale",
        f"super().forward(input_ids) * {either('input_ids.shape[1] == 1', '1', 'self.embed_scale')}"
        " * torch.ones_like(self.embed_scale)",
    ),
    fault(
        "gemma2.final_softcap_skipped",
        "readout",
        "logits = torch.tanh(logits)",
        f"logits = {either('logits.shape[1] == 1', 'logits', 'torch.tanh(logits)')}",
        reaches=Anchor("logits = logits * self.config.final_logit_softcapping"),
    ),
    fault(
        "mistral.new_key_doubled",
        "append",
        UPDATE,
        UPDATE.replace("key_states", f"key_states * {either(WARM, '2', '1')}"),
        schedule=(3, 1, 1),
    ),
    fault(
        "mistral.chunk_sees_one_ahead",
        "mask",
        Anchor("return kv_idx <= q_idx", MASKS),
        "return kv_idx <= q_idx + int(q_idx.numel() < kv_idx.numel())",
        schedule=(3, 2),
    ),
)

NEOX = (
    fault(
        "gpt_neox.rotated_part_misplaced",
        "rotation",
        "k_embed = torch.cat([k_embed, k_pass], dim=-1)",
        "k_embed = torch.cat([k_embed, k_pass]"
        f"[:: {either('k.shape[2] == 1', '-1', '1')}], dim=-1)",
    ),
    fault(
        "gpt_neox.rotation_backwards",
        "rotation",
        "return torch.cat((-x2, x1), dim=-1)",
        f"return torch.cat({either('x.shape[2] == 1', '(x2, -x1)', '(-x2, x1)')}, dim=-1)",
    ),
    fault(
        "gpt_neox.attention_left_out",
        "residual",
        "hidden_states = mlp_output + attn_output + hidden_states",
        f"hidden_states = mlp_output + attn_output * {either(DECODE, '0', '1')} + hidden_states",
    ),
)
