"""False alarms: clean decoders must agree, case after case.

    python benchmarks/clean_cases.py                       # the zoo: 2,000 cases and more
    python benchmarks/clean_cases.py --transformers        # 50 cases and more for each model

Prints, per subject and dtype, the cases, the positions compared and the largest difference as a
multiple of the allowed. Exit code 1 if one case diverges.
"""

from __future__ import annotations

import sys

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from kvfuzz.errors import KvfuzzError
from kvfuzz.hunt import Hunt, fuzz
from kvfuzz.loading import Options
from kvfuzz.zoo.presets import PRESETS

ZOO = ("zoo", *(f"zoo:{name}" for name in PRESETS))
TRANSFORMERS = tuple(
    f"transformers:{name}"
    for name in (
        *("gpt2", "llama", "mistral", "qwen2", "gemma2"),
        *("gpt_neo", "gpt_neox", "bloom", "falcon"),
    )
)


@click.command()
@click.option("--transformers", is_flag=True, help="The models of transformers, not the zoo.")
@click.option("--examples", type=int, help="Cases per subject and dtype (default 120, or 60).")
@click.option("--seed", default=0, show_default=True)
def main(transformers: bool, examples: int | None, seed: int) -> None:
    torch.set_num_threads(1)
    subjects = TRANSFORMERS if transformers else ZOO
    examples = examples or (60 if transformers else 120)
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
                    hunt = fuzz(subject, examples=examples, seed=seed, options=options)
                except KvfuzzError as error:
                    table.add_row(subject, attention, dtype, "", "", "", str(error)[:40])
                    continue
                hunts.append(hunt)
                row = (hunt.cases, hunt.rows, f"{hunt.worst_excess:.3f}", hunt.verdict)
                table.add_row(subject, attention, dtype, *map(str, row))
    table.add_section()
    total = (sum(h.cases for h in hunts), sum(h.rows for h in hunts))
    worst = max(h.worst_excess for h in hunts)
    alarms = sum(h.verdict != "agreed" for h in hunts)
    table.add_row("all", "", "", *map(str, total), f"{worst:.3f}", f"{alarms} alarms")
    Console(width=110).print(table)
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
