"""Data flows one way: nothing imports what stands on its right."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From left to right; a module may import its own row and the rows before it.
ROWS = [
    [
        "errors",
        "near",
        "files",
        "sites",
        "location",
        "causes",
        "resemblances",
        "schedule",
        "case",
        "layout",
        "families",
        "tolerance",
        "verdict",
        "lanes",
        "tensors",
        "calibration",
    ],
    ["subject", "twin"],
    ["run", "compare", "injection", "noise", "evidence", "states", "tracing"],
    [
        "loading",
        "reference",
        "agreement",
        "frames",
        "generation",
        "laws",
        "expectations",
        "locating",
        "paths",
        "explaining",
    ],
    ["adapters", "zoo"],
    [
        "programs",
        "strategies",
        "driving",
        "counterexample",
        "rounds",
        "parallel",
        "hunt",
        "replaying",
        "collecting",
        "calibrating",
        "machine",
    ],
    ["generate", "interventions", "findings", "audit"],
    ["report", "assertions", "options", "settings", "plugin", "suite", "cli"],
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}


def imports(path):
    """The kvfuzz and mutants modules that the file at `path` imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room(path, root):
    """The top-level name of `path` inside kvfuzz: `run`, `zoo`, ..."""
    return path.relative_to(root / "kvfuzz").with_suffix("").parts[0]


def backward(root):
    """Every import that points to the right, as `importer -> imported`."""
    found = []
    for path in sorted((root / "kvfuzz").rglob("*.py")):
        if path == root / "kvfuzz" / "__init__.py":
            continue
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "mutants":
                found.append(f"{room(path, root)} -> {module}")
            elif parts[0] == "kvfuzz" and len(parts) > 1:
                here, there = RANK[room(path, root)], RANK[parts[1]]
                if there > here:
                    found.append(f"{room(path, root)} -> {module}")
    return found


def test_every_module_has_a_row():
    """A new file says where it stands."""
    names = {room(path, ROOT) for path in (ROOT / "kvfuzz").rglob("*.py")} - {"__init__"}
    assert names == set(RANK)


def test_no_import_points_back():
    """And kvfuzz never imports the mutants."""
    assert backward(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("run.py", "from kvfuzz.report.text import hunt_text", "run -> kvfuzz.report.text"),
        ("case.py", "def f():\n    import kvfuzz.subject", "case -> kvfuzz.subject"),
        ("hunt.py", "from mutants.registry import library", "hunt -> mutants.registry"),
    ],
)
def test_a_planted_import_that_points_back_is_found(tmp_path, file, line, found):
    """The test above can fail."""
    (tmp_path / "kvfuzz").mkdir()
    (tmp_path / "kvfuzz" / file).write_text(line)
    assert backward(tmp_path) == [found]


HEAVY = ("torch", "hypothesis", "transformers", "matplotlib", "mutants", "rich", "click")


def heavy_after(statement):
    """Which heavy packages a fresh interpreter holds after `statement`."""
    script = f"import sys; {statement}; print(*[n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_kvfuzz_is_light():
    """Not even torch, until it is needed."""
    assert heavy_after("import kvfuzz") == []


def test_the_light_import_test_can_fail():
    """Using the API does bring torch."""
    assert "torch" in heavy_after("import kvfuzz; kvfuzz.check")


def test_fuzzing_the_zoo_imports_neither_transformers_nor_mutants():
    """What is not named is not imported."""
    loaded = heavy_after("import kvfuzz; kvfuzz.fuzz('zoo', examples=1, seed=0)")
    assert "transformers" not in loaded
    assert "mutants" not in loaded
