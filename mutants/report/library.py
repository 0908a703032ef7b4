"""The library of faults in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from mutants.mutant import Mutant


def render_list(mutants: Sequence[Mutant], console: Console) -> None:
    """Print one row per mutant."""
    table = Table(title=f"{len(mutants)} mutants")
    table.add_column("id", no_wrap=True)
    table.add_column("first differing site", no_wrap=True)
    table.add_column("fault")
    for mutant in mutants:
        site = str(mutant.site) if mutant.site else f"({mutant.without_site})"
        table.add_row(mutant.id, site, escape(mutant.description))
    console.print(table)


def render_mutant(mutant: Mutant, console: Console) -> None:
    """Print one mutant whole: its promises, its source, its witness and how to hunt it."""

    def line(label: str, text: object) -> None:
        console.print(f"{label:22}{text}", soft_wrap=True, highlight=False, markup=False)

    console.print(mutant.id, style="bold", highlight=False)
    line("", mutant.description)
    line("replaces", ", ".join(mutant.targets))
    if mutant.site:
        line("first differing site", f"{mutant.site} ({mutant.site.prose})")
    if mutant.law != "agreement":
        line("told by", mutant.law)
    if mutant.exercises:
        line("killed by cases with", ", ".join(mutant.exercises))
    if mutant.needs:
        line("needs", "; ".join(f"{n} {list(fit)}" for n, fit in mutant.needs.items()))
    if mutant.sizes:
        line("size", mutant.sizes_text)
    if mutant.seen_in:
        line("seen in", mutant.seen_in)
    if mutant.equivalent:
        line("equivalent", mutant.equivalent)
    if mutant.witness:
        line("witness", json.dumps(mutant.witness.to_json()))
    line("hunt it", f"kvfuzz fuzz mutant:{mutant.id}")
    console.print(Syntax(mutant.source, "python", background_color="default"))
