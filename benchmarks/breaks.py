"""Breaks kvfuzz on purpose, and reports which test fails.

python benchmarks/breaks.py --page docs/tests.md      # all of them, and the table of the page
python benchmarks/breaks.py --only "NaN in one path"  # the named breaks with this text
python benchmarks/breaks.py --check                   # only whether the texts are still there

Two kinds. The named breaks (`named_breaks.py`) take one guard away each. The drawn ones
(`drawn_breaks.py`) are mutations of mutmut's kind in the packages that judge and search, drawn at
random under a seed. Each is made in a copy of the tree. First the tests run that are likely to see
it, then all of the tier quick, then those of the tier full, up to the first that fails.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import hypothesis  # noqa: F401 - imported once for all runs of pytest
import pytest
import torch  # noqa: F401
from drawn_breaks import EQUIVALENT, draw_mutations, likely_tests
from named_breaks import NAMED, Break

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- breaks: written by `benchmarks/breaks.py` -->\n", "<!-- end of breaks -->\n"
LIMIT, LIMIT_OF_ALL = 900, 3600
"""Seconds for the tests that are likely to see a break, and for all. A break that hangs the tests
is seen as well."""


@dataclass(frozen=True)
class Seen:
    """The first `test` that failed on a break, and its `tier`; None if every test passed."""

    test: str | None
    tier: str = ""


class Copy:
    """A copy of the tree without ignored files, in which breaks are made one after another.
    `likely_only` leaves out the tests that are not likely to see a break."""

    def __init__(self, folder: Path, likely_only: bool) -> None:
        self.folder = folder
        self.likely_only = likely_only
        self._writes = 0
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def read(self, file: str) -> str:
        """Returns the text of a source file."""
        return (self.folder / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        """Writes a source file, with a time of its own: Python takes compiled code for current if
        the time, in seconds, and the size of its source are the same."""
        self._writes += 1
        path, now = self.folder / file, time.time() + 2 * self._writes
        path.write_text(text, encoding="utf-8")
        os.utime(path, (now, now))

    def first_failure(self, tests: Sequence[str], *options: str, limit: float) -> str | None:
        """Runs `tests` for up to `limit` seconds; returns the first that fails or does not end, or
        None."""
        output = self.folder / "pytest.log"
        command = ["-vx", "-p", "no:cacheprovider", *options, *tests]
        code = run_pytest(self.folder, command, output, limit)
        if code == 0:
            return None
        said = output.read_text(encoding="utf-8", errors="replace")
        if code is None:
            return re.findall(r"^(tests/\S+::\S+)", said, re.M)[-1]
        # An error of the collection counts as well: a package that does not import is seen at once.
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.M)
        if failed is None:
            raise click.ClickException(f"pytest ended with {code}:\n{said}")
        return failed[1]


def run_pytest(folder: Path, arguments: Sequence[str], output: Path, limit: float) -> int | None:
    """Runs pytest in `folder`, in a fork of this process, which has imported torch but nothing of
    kvfuzz; returns its exit code, or None if it took longer than `limit` seconds."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = pytest.main([*arguments])
        sys.stdout.flush()
        os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_break(copy: Copy, file: str, text: str, likely: Sequence[str]) -> Seen:
    """Writes the broken `text` of `file`, runs the tests until one fails, and mends the file."""
    mended = copy.read(file)
    copy.write(file, text)
    try:
        if test := copy.first_failure(likely, limit=LIMIT):
            return Seen(test, "quick")
        if copy.likely_only:
            return Seen(None)
        if test := copy.first_failure(["tests"], limit=LIMIT_OF_ALL):
            return Seen(test, "quick")
        if test := copy.first_failure(["tests"], "--full", "-m", "full", limit=LIMIT_OF_ALL):
            return Seen(test, "full")
        return Seen(None)
    finally:
        copy.write(file, mended)


def broken(copy: Copy, each: Break) -> str:
    """Returns the text of the file of `each` with the break in it."""
    source = copy.read(each.file)
    if source.count(each.old) != 1:
        raise click.ClickException(
            f"{each.file} has this text {source.count(each.old)} times, not once, so the break of "
            f"{each.guard!r} has to be written anew:\n{each.old}"
        )
    return source.replace(each.old, each.new)


def run_named(copy: Copy, chosen: Sequence[Break]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each of the named breaks."""
    for each in chosen:
        seen = run_break(copy, each.file, broken(copy, each), each.tests)
        yield tell(each.guard, each.file, seen)


def run_drawn(copy: Copy, seed: int, count: int) -> Iterator[tuple[str, ...]]:
    """Yields a row for each of `count` drawn mutations that are not equivalent, and for each
    equivalent one in between."""
    for each in draw_mutations(copy.folder, seed):
        if count == 0:
            return
        name = f"{code(each.line)}: {code(each.before)} becomes {code(each.after)}"
        if reason := EQUIVALENT.get((each.file, each.line, each.before, each.after)):
            yield name, each.file, f"equivalent: {reason}", ""
            continue
        count -= 1
        yield tell(name, each.file, run_break(copy, each.file, each.text, likely_tests(each)))


def commit() -> str:
    """Returns the commit of the tree."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout[:-1]


def tell(name: str, file: str, seen: Seen) -> tuple[str, ...]:
    """Returns the row of a break."""
    test = code(seen.test.partition("[")[0]) if seen.test else "**none**"
    return name, file, test, seen.tier


def code(text: str) -> str:
    """Returns `text` as code in a cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@click.command()
@click.option("--only", default="", help="Only the named breaks whose guard has this text.")
@click.option("--seed", default=16, show_default=True, help="Seed of the drawn breaks.")
@click.option("--drawn", default=15, show_default=True, help="How many breaks to draw.")
@click.option("--likely", is_flag=True, help="Only run the tests that are likely to see a break.")
@click.option("--check", is_flag=True, help="Only check that each named break fits the code.")
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Page for the tables.")
def main(only: str, seed: int, drawn: int, likely: bool, check: bool, page: Path | None) -> None:
    """Break kvfuzz on purpose; exit 1 if a break is not seen."""
    chosen = [each for each in NAMED if only in each.guard]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), likely)
        for each in chosen:
            broken(copy, each)
        if check:
            print(f"{len(chosen)} breaks fit")
            return
        named = list(shown(run_named(copy, chosen)))
        random = list(shown(run_drawn(copy, seed, 0 if only else drawn)))
    if page is not None:
        text = page.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        head = ("seen by", "tier")
        tables = (
            f"{BEGIN}\n{table(named, ('guard taken away', 'in', *head))}\n"
            f"Drawn under seed {seed} on {commit()}; other code has other mutations:\n\n"
            f"{table(random, ('mutation', 'in', *head))}\n"
        )
        page.write_text(f"{before}{tables}{END}{after}", encoding="utf-8")
    sys.exit(any("**none**" in row for row in (*named, *random)))


def shown(rows: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Prints each row when it is known."""
    for row in rows:
        print(" | ".join(row), flush=True)
        yield row


if __name__ == "__main__":
    main()
