"""False alarms: clean decoders must agree, program after program, under every law.

    python benchmarks/clean_cases.py                       # the zoo: 10,000 programs and more
    python benchmarks/clean_cases.py --transformers        # 10,000 of models of transformers

Prints, per subject and dtype, the cases, the positions compared and the largest difference as a
multiple of the allowed. A subject counts as clean unless a script without kvfuzz shows it wrong:
those are in `exclusions/`, and what they show is expected of transformers models
(`exclusions/transformers.json`). Exit code 1 if one case diverges.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from kvfuzz.errors import KvfuzzError
from kvfuzz.report.text import hunt_text
from kvfuzz.search.hunt import Hunt, fuzz
from kvfuzz.search.known_divergences import read_expectations
from kvfuzz.subjects.loading import Options
from kvfuzz.subjects.zoo.presets import PRESETS

EXPECTED = Path(__file__).with_name("exclusions") / "transformers.json"
ZOO = ("zoo", *(f"zoo:{name}" for name in PRESETS))
TRANSFORMERS = tuple(
    f"transformers:{name}"
    for name in (
        *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        *("gpt_neo", "gpt_neox", "gptj", "bloom", "falcon", "opt", "phi", "phi3", "cohere"),
        *("cohere2", "olmo2", "starcoder2", "mixtral", "stablelm", "granite", "smollm3"),
    )
)


@click.command()
@click.option("--transformers", is_flag=True, help="The models of transformers, not the zoo.")
@click.option("--examples", type=int, help="Cases per subject and dtype (default 250, or 110).")
@click.option("--seed", default=0, show_default=True)
def main(transformers: bool, examples: int | None, seed: int) -> None:
    torch.set_num_threads(1)
    subjects = TRANSFORMERS if transformers else ZOO
    examples = examples or (110 if transformers else 250)
    expected = read_expectations(EXPECTED) if transformers else ()
    table = Table(box=box.SIMPLE)
    for heading in ("subject", "attention", "dtype", "cases", "positions", "largest", "verdict"):
        table.add_column(heading, justify="right")
    hunts: list[Hunt] = []
    for subject in subjects:
        for attention in ("eager", "sdpa") if transformers else ("",):
            for dtype in ("float32", "float64"):
                config = {"attn": attention} if attention else {}
                try:
                    options = Options(dtype=dtype, config=config)
                    hunt = fuzz(
                        subject, examples=examples, seed=seed, options=options, expected=expected
                    )
                except KvfuzzError as error:
                    table.add_row(subject, attention, dtype, "", "", "", str(error)[:40])
                    continue
                hunts.append(hunt)
                if hunt.failure is not None:
                    print(subject, options, hunt_text(hunt), flush=True)
                row = (hunt.cases, hunt.positions, f"{hunt.worst_excess:.3f}", hunt.verdict)
                table.add_row(subject, attention, dtype, *map(str, row))
    table.add_section()
    total = (sum(h.cases for h in hunts), sum(h.positions for h in hunts))
    worst = max(h.worst_excess for h in hunts)
    alarms = sum(h.verdict != "agreed" for h in hunts)
    table.add_row("all", "", "", *map(str, total), f"{worst:.3f}", f"{alarms} alarms")
    Console(width=110).print(table)
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
