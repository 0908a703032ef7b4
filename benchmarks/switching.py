"""The mutants that mutmut generates for one decoder file, run by mutmut and by our own switching.

    python -m benchmarks.switching --repeats 3

Both tools check the same property, without shrinking, on the same cases, in turn
(`switching/property.py`); what is timed is the whole process, with its imports, and for mutmut the
generation as well. A mutant that mutmut calls killed must not survive here: it is killed, or loud
where the test failed because the mutant raised.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.row import Measurement, NotRun
from benchmarks.timing import command_seconds

HERE = Path(__file__).parent / "switching"
CONFIG = """[mutmut]
source_paths=decoder.py
pytest_add_cli_args_test_selection=test_property.py
also_copy=
    property.py
    test_property.py
"""
KILLED = 1
"""The exit code of the tests on a mutant that fails them."""
CAUGHT = ("killed", "loud")


@click.command()
@click.option("--repeats", default=3, show_default=True)
def main(repeats: int) -> None:
    found = against_mutmut(repeats)
    for ours, theirs in found.pairs:
        print(f"mutmut {theirs:.1f} s, switching {ours:.1f} s: ratio {ours / theirs:.3f}")
    print(found.evidence)
    print(f"median ratio {statistics.median(found.ratios):.3f}")
    if found.changed:
        raise click.ClickException(found.changed)


def against_mutmut(repeats: int) -> Measurement:
    """The same mutants and the same property, by our own switching against mutmut."""
    if find_spec("mutmut") is None:
        raise NotRun("mutmut is not installed")
    pairs, lost, evidence = [], set[str](), ""
    for _ in range(repeats):
        with TemporaryDirectory() as name:
            theirs, theirs_found = _mutmut(Path(name))
            ours, ours_found = _ours(Path(name))
        pairs.append((ours, theirs))
        killed = [name for name, code in theirs_found.items() if code == KILLED]
        lost |= {name for name in killed if ours_found[_function(name)] not in CAUGHT}
        states = Counter(ours_found.values())
        told = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        evidence = f"mutmut kills {len(killed)} of {len(theirs_found)}; switching: {told}"
    return Measurement(tuple(pairs), evidence, f"kills lost: {sorted(lost)}" if lost else None)


def _function(mutant: str) -> str:
    """Returns the name of the function of a mutant, which mutmut calls `module.function`."""
    return mutant.partition(".")[2]


def _mutmut(folder: Path) -> tuple[float, dict[str, int]]:
    """Seconds of `mutmut run` in `folder`, and the exit code of the tests on each mutant."""
    for path in HERE.glob("*.py"):
        shutil.copy(path, folder)
    (folder / "setup.cfg").write_text(CONFIG)
    seconds, _ = command_seconds(
        [sys.executable, "-m", "mutmut", "run", "--max-children", "1"], folder
    )
    data = json.loads((folder / "mutants" / "decoder.py.meta").read_text())
    return seconds, dict(data["exit_code_by_key"])


def _ours(folder: Path) -> tuple[float, dict[str, str]]:
    """Seconds of our own switching of the same mutants, and what became of each."""
    words = [sys.executable, str(folder / "ours.py"), str(folder / "mutants")]
    seconds, printed = command_seconds(words, folder)
    return seconds, json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    main()
