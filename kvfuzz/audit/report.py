"""Prints an audit in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvfuzz.audit.findings import Audit, Generation, spaced
from kvfuzz.audit.sabotage import Sabotaged

STYLES = {"agreed": "green", "diverged": "red", "inconclusive": "yellow"}


def render(audit: Audit, console: Console) -> None:
    """Prints the training, the prefixes, the memory, the sabotages, generation, and the verdict
    with every problem."""
    console.print(
        f"checkpoint: loss {audit.loss:.4f} nats per token (bound {audit.max_loss:.4f}), "
        f"seed {audit.recipe['seed']}, torch {audit.torch}",
        markup=False,
    )
    console.print(_prefixes(audit))
    console.print(_memory(audit))
    console.print(_sabotages(audit))
    for item in audit.sabotages:
        _print_advice(item, console)
    console.print(_generations(audit))
    _print_verdict(audit, console)


def _prefixes(audit: Audit) -> Table:
    table = Table(title="Cached against uncached logits, one token per step")
    for column in ("prefix", "pattern", "cache shape per K or V", "|uncached - cached|"):
        table.add_column(column)
    table.add_column("any schedule")
    table.add_column(f"boundary {audit.tolerance:g}")
    for row in audit.rows:
        table.add_row(
            str(row.prefix),
            spaced(row.pattern),
            str(row.cache_shape),
            f"{row.max_abs_diff:.4e}",
            f"{row.any_schedule_abs_diff:.4e}",
            _coloured(row.verdict(audit.tolerance)),
        )
    return table


def _memory(audit: Audit) -> Table:
    """Has a line for each prefix length, of the pattern that differs most from the formula."""
    table = Table(title="Cache memory, K and V of all layers")
    for column in ("prefix", "measured", "2 x layers x batch x kv_heads x T x head_dim x bytes"):
        table.add_column(column)
    for prefix in sorted({row.prefix for row in audit.rows}):
        rows = [row for row in audit.rows if row.prefix == prefix]
        row = max(rows, key=lambda row: abs(row.cache_bytes - row.expected_bytes))
        table.add_row(str(prefix), f"{row.cache_bytes} bytes", f"{row.expected_bytes} bytes")
    return table


def _sabotages(audit: Audit) -> Table:
    table = Table(title="Sabotage: |uncached - cached| by prefix length")
    lengths = max((len(item.by_prefix) for item in audit.sabotages), default=0)
    for column in ("failure", *map(str, range(1, lengths + 1)), "caught", "first site"):
        table.add_column(column)
    for item in audit.sabotages:
        table.add_row(
            f"{item.name}: {item.description}",
            *(f"{difference:.2g}" for difference in item.by_prefix),
            "[green]yes[/]" if item.caught else "[red]no[/]",
            item.first_site or "none",
        )
    return table


def _print_advice(item: Sabotaged, console: Console) -> None:
    text = f"{item.name}: no state differs"
    if item.first_site_prose:
        text = (
            f"{item.name}: the first state that differs is the {item.first_site_prose} "
            f"({item.source})\n  first: {item.advice}"
        )
    console.print(text, markup=False, highlight=False)


def _generations(audit: Audit) -> Table:
    table = Table(title="Generation, cached and uncached")
    for column in ("mode", "prompt", "tokens", "identical"):
        table.add_column(column)
    for item in audit.generations:
        tokens = spaced(item.cached)
        if not item.identical:
            tokens = f"cached {item.error or tokens}\nuncached {spaced(item.uncached)}"
        table.add_row(
            _mode(item),
            spaced(item.prompt),
            escape(tokens),
            "[green]yes[/]" if item.identical else "[red]no[/]",
        )
    return table


def _mode(item: Generation) -> str:
    sampling = item.sampling
    if sampling is None:
        return "greedy"
    return f"temperature {sampling.temperature:g}, top-k {sampling.top_k}, seed {sampling.seed}"


def _print_verdict(audit: Audit, console: Console) -> None:
    for problem in audit.problems:
        console.print(f"  {problem}", style="red", markup=False, highlight=False)
    console.print(
        f"[bold {STYLES[audit.verdict]}]{audit.verdict.upper()}[/]: largest difference "
        f"{audit.max_abs_diff:.4e}, boundary {audit.tolerance:g}"
    )


def _coloured(verdict: str) -> str:
    return f"[{STYLES[verdict]}]{verdict}[/]"
