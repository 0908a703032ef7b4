"""One fault: it changes a line of a model's file, or of the library's cache or mask code, so that
one path is wrong.

A fault that must not touch the uncached path needs a condition. Where the cache is in reach it asks
whether that holds anything; elsewhere it asks for a single token, or for fewer queries than keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Entry, Padded
from tests.quality.injected.copies import CACHE, Anchor, Edit

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
        """Returns the case that shows it; all its tokens differ."""
        length = sum(map(_columns, self.schedule))
        tokens = [
            [(11 * row + 7 * at + 3) % 64 for at in range(length)] for row in range(self.rows)
        ]
        return Case(tuple(map(tuple, tokens)), self.schedule, 1, "float64", config, self.given)


def _columns(entry: Entry) -> int:
    """Returns how many tokens of a row an entry of a schedule takes."""
    if isinstance(entry, Padded):
        return entry.size
    return entry if isinstance(entry, int) else 0


def fault(
    name: str, kind: str, at: Anchor | str, becomes: str, *more: Edit, **settings: Any
) -> Fault:
    """Returns the fault `model.id` that replaces the text `at` an anchor by what it `becomes`."""
    model, own = name.split(".")
    anchor = Anchor(at) if isinstance(at, str) else at
    return Fault(own, model, kind, (Edit(anchor, becomes), *more), **settings)


def either(condition: str, wrong: str, right: str) -> str:
    """Returns source that is `wrong` under that condition, else `right`."""
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
