"""Prints the library of faults in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax

from kvfuzz.search.shrink import Shrunk
from mutants.mutant import ANY, Mutant


def render_list(mutants: Sequence[Mutant], console: Console) -> None:
    """Prints each mutant's id and first differing site, and below them the fault: a table would
    leave too little room for it on 80 columns."""
    for mutant in mutants:
        site = str(mutant.site) if mutant.site else f"({_instead_of_site(mutant)})"
        console.print(f"[bold]{mutant.id}[/]  {site}", soft_wrap=True, highlight=False)
        console.print(Padding(escape(mutant.description), (0, 0, 0, 4)), highlight=False)
    console.print(f"{len(mutants)} mutants", highlight=False)


def _instead_of_site(mutant: Mutant) -> str:
    """Returns what to print for a mutant without a site."""
    return "in any subject" if mutant.subject == ANY else mutant.without_site


def render_mutant(mutant: Mutant, console: Console, shrunk: Shrunk | None = None) -> None:
    """Prints one mutant: what it declares, its source, its witness, also `shrunk`, and the command
    to fuzz it."""

    def line(label: str, text: object) -> None:
        console.print(f"{label:22}{text}", soft_wrap=True, highlight=False, markup=False)

    console.print(mutant.id, style="bold", highlight=False)
    line("", mutant.description)
    if mutant.targets:
        line("replaces", ", ".join(mutant.targets))
    if mutant.site:
        line("first differing site", f"{mutant.site} ({mutant.site.prose})")
    if mutant.law != "agreement":
        line("law", mutant.law)
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
    if shrunk:
        line("shrunk witness", json.dumps(shrunk.case.to_json()))
        line("", "no simpler version kills it" if shrunk.done else "not fully shrunk")
    where = "@SUBJECT" if mutant.subject == ANY else ""
    line("fuzz it", f"kvfuzz fuzz mutant:{mutant.id}{where}")
    code = Syntax("", "python", background_color="default").highlight(mutant.source)
    console.print(code, soft_wrap=True)  # a Syntax would cut long lines off
