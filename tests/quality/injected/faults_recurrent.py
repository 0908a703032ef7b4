"""Faults of models with a recurrent state or a convolution."""

from kvfuzz.case.schedule import Reorder
from tests.quality.injected.copies import CACHE, Anchor
from tests.quality.injected.fault import WARM, either, fault

RECURRENT = (
    fault(
        "lfm2.convolution_state_not_rolled",
        "recurrent state",
        "conv_state.copy_(hidden_states_new[:, :, -state_len:])",
        "conv_state.copy_(hidden_states_new[:, :, :state_len])",
        schedule=(4, 1, 1),
        in_tests=True,
    ),
    fault(
        "lfm2.convolution_reversed",
        "convolution",
        "out = F.conv1d(hidden_states_new, weight.unsqueeze(1)",
        "out = F.conv1d(hidden_states_new, weight.flip(-1).unsqueeze(1)",
    ),
    fault(
        "lfm2.short_prompt_at_the_wrong_end",
        "recurrent state",
        Anchor("(padding_length, 0), value=0)", CACHE),
        "(0, padding_length), value=0)",
        schedule=(2, 1),
    ),
    fault(
        "lfm2.chunk_forgets_the_convolution",
        "recurrent state",
        Anchor("torch.cat([self.conv_states[state_idx], conv_states], dim=-1)", CACHE),
        "torch.cat([self.conv_states[state_idx] * 0, conv_states], dim=-1)",
        schedule=(3, 2),
    ),
    fault(
        "lfm2.gate_skipped",
        "mlp",
        "y = C * hidden_states",
        f"y = {either('seq_len == 1', 'hidden_states', 'C * hidden_states')}",
        reaches=Anchor("y = y.transpose(-1, -2).contiguous()"),
    ),
    fault(
        "lfm2.key_norm_skipped",
        "norm",
        "self.k_layernorm(self.k_proj(hidden_states).view(*hidden_shape))",
        either(WARM, "torch.clone", "self.k_layernorm")
        + "(self.k_proj(hidden_states).view(*hidden_shape))",
    ),
    fault(
        "lfm2.reorder_leaves_the_convolution",
        "reorder",
        Anchor("self.conv_states[i].index_select(0, beam_idx.to(self.device))", CACHE),
        "self.conv_states[i].clone()",
        schedule=(3, Reorder((1, 0)), 1),
        rows=2,
    ),
    fault(
        "falcon_h1.state_decays_twice",
        "recurrent state",
        "ssm_states = state * dA + dBx",
        "ssm_states = state * dA * dA + dBx",
    ),
    fault(
        "falcon_h1.state_not_updated",
        "recurrent state",
        "state.copy_(ssm_states.to(state.dtype))",
        "state.copy_(state.clone())",
        schedule=(3, 1, 1),
    ),
    fault(
        "falcon_h1.chunk_forgets_the_state",
        "recurrent state",
        "initial_states=recurrent_state,",
        "initial_states=None,",
        reaches=Anchor("else torch.zeros_like(states[:, :1])"),
        schedule=(3, 2),
    ),
    fault(
        "falcon_h1.state_stored_scaled",
        "recurrent state",
        "cache.update_recurrent_state(ssm_state, self.layer_idx)",
        "cache.update_recurrent_state(ssm_state * 0.99, self.layer_idx)",
        in_tests=True,
    ),
    fault(
        "falcon_h1.time_step_without_bias",
        "recurrent state",
        Anchor("dt = dt + dt_bias.to(dt.dtype)", nth=1, of=2),
        "dt = dt + 0 * dt_bias.to(dt.dtype)",
    ),
    fault(
        "falcon_h1.skip_connection_doubled",
        "residual",
        "out = (out + hidden_states * D).to(out.dtype)",
        "out = (out + 2 * hidden_states * D).to(out.dtype)",
    ),
)
