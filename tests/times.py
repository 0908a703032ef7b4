"""Measures the CPU seconds of each test module, child processes included.

Worker processes that are forked from a server (`kvfuzz.search.pool`) are not: the system counts
them for the server.
"""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

TIERS = ("quick", "full")
BEGIN, END = "<!-- times: written by `tox -e times` -->\n", "<!-- end of times -->\n"
SHORT = 1.0
"""Modules that use less than this many seconds share one line."""


def cpu_seconds() -> float:
    """What this process used, and those of its children that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


class Times:
    """A pytest plugin. With xdist each worker measures, and its reports carry the figures."""

    def __init__(self) -> None:
        self.tests: Counter[tuple[str, str]] = Counter()
        """How many tests a module has in a tier."""
        self.seconds: Counter[tuple[str, str]] = Counter()
        self._last = 0.0

    def pytest_runtest_logstart(self) -> None:
        """Counts what came before the first test, such as the collection, for no module."""
        self._last = self._last or cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Puts into each report what its phase used, and the tier of its test."""
        report = yield
        now = cpu_seconds()
        report.tier = TIERS[item.get_closest_marker("full") is not None]
        report.cpu, self._last = now - self._last, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds up the reports; those of a worker arrive in the main process."""
        key = report.nodeid.partition("::")[0], report.tier
        self.tests[key] += report.when == "setup"
        self.seconds[key] += report.cpu

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each module, the slowest first, and one for all."""
        modules = sorted(
            {module for module, _ in self.tests},
            key=lambda module: [-self.seconds[module, tier] for tier in TIERS],
        )
        long = [m for m in modules if max(self.seconds[m, tier] for tier in TIERS) >= SHORT]
        short = [module for module in modules if module not in long]
        rows = [self._row(f"`{module}`", [module]) for module in long]
        rest = [self._row(f"others ({len(short)})", short)] if short else []
        return [*rows, *rest, self._row("all", modules)]

    def _row(self, name: str, modules: list[str]) -> tuple[str, ...]:
        cells = [name]
        for tier in TIERS:
            tests = sum(self.tests[module, tier] for module in modules)
            seconds = sum(self.seconds[module, tier] for module in modules)
            cells += [str(tests), f"{seconds:.1f}"] if tests else ["", ""]
        return tuple(cells)

    def table(self) -> str:
        """The rows as Markdown."""
        head = ("module", "tests, quick", "CPU seconds", "tests, full only", "CPU seconds")
        rule = ("---", *["---:"] * 4)
        return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *self.rows()))

    def write(self, page: Path) -> None:
        """Replaces the table that stands in `page`."""
        text = page.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n{self.table()}\n{END}{after}", encoding="utf-8")
