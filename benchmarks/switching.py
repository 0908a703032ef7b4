"""The mutants that mutmut generates for one decoder file, run by mutmut and by our own switching.

    python benchmarks/switching.py --repeats 3

Both tools check the same property, without shrinking, on the same cases, in turn
(`switching/property.py`); what is timed is the whole process, with its imports, and for mutmut the
generation as well. A mutant that mutmut calls killed must not survive here: it is killed, or loud
where the test failed because the mutant raised.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

HERE = Path(__file__).parent / "switching"
CONFIG = """[mutmut]
source_paths=decoder.py
pytest_add_cli_args_test_selection=test_property.py
also_copy=
    property.py
    test_property.py
"""
KILLED, SURVIVED = 1, 0


@click.command()
@click.option("--repeats", default=3, show_default=True)
def main(repeats: int) -> None:
    ratios, losses = [], 0
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            theirs, theirs_found = _mutmut(folder)
            ours, ours_found = _ours(folder)
        ratios.append(ours / theirs)
        lost = [
            name
            for name, code in theirs_found.items()
            if code == KILLED and ours_found[name.partition(".")[2]] not in ("killed", "loud")
        ]
        losses += len(lost)
        killed = sum(code == KILLED for code in theirs_found.values())
        counts = {s: list(ours_found.values()).count(s) for s in sorted({*ours_found.values()})}
        print(
            f"run {number + 1}: mutmut {theirs:.1f} s, {killed} of {len(theirs_found)} killed; "
            f"switching {ours:.1f} s, {counts}; ratio {ours / theirs:.3f}; kills lost: {len(lost)}",
            flush=True,
        )
        for name in lost:
            print(f"  lost: {name}")
    print(f"median ratio {statistics.median(ratios):.3f} (at most 0.15 is meant)")
    sys.exit(1 if losses else 0)


def _mutmut(folder: Path) -> tuple[float, dict[str, int]]:
    """Seconds of `mutmut run` in `folder`, and the exit code of the tests on each mutant."""
    for path in HERE.glob("*.py"):
        shutil.copy(path, folder)
    (folder / "setup.cfg").write_text(CONFIG)
    seconds, _ = _timed([sys.executable, "-m", "mutmut", "run", "--max-children", "1"], folder)
    data = json.loads((folder / "mutants" / "decoder.py.meta").read_text())
    return seconds, dict(data["exit_code_by_key"])


def _ours(folder: Path) -> tuple[float, dict[str, str]]:
    """Seconds of our own switching of the same mutants, and what became of each."""
    words = [sys.executable, str(folder / "ours.py"), str(folder / "mutants")]
    seconds, printed = _timed(words, folder)
    return seconds, json.loads(printed.splitlines()[-1])


def _timed(words: list[str], folder: Path) -> tuple[float, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    done = subprocess.run(
        words, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise click.ClickException(f"{words[1:]} failed: {(done.stderr or done.stdout)[-500:]}")
    return seconds, done.stdout


if __name__ == "__main__":
    main()
