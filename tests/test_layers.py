"""Data flows one way: no room imports a room above it, and no modules import in a circle."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kvfuzz

ROOT = Path(__file__).parents[1]

# Bottom up: a room may import itself and what stands before it. `kvfuzz/__init__.py` is the top of
# its package and has every room below it, so nothing inside may import it.
KVFUZZ = [
    "errors",
    "_version",
    "case",
    "subjects",
    "oracle",
    "localize",
    "search",
    "audit",
    "report",
    "testing",
    "cli",
    "suite",
]
MUTANTS = ["mutant", "generic", "library", "equivalence", "campaign", "report", "cli", "suite"]
ORDER = [f"kvfuzz.{room}" for room in KVFUZZ] + ["kvfuzz"]
ORDER += [f"mutants.{room}" for room in MUTANTS] + ["mutants"]

# An import by name, as a scheme or a fault has it: "package.module" or "package.module:attribute".
NAMED = re.compile(r"((?:kvfuzz|mutants)(?:\.\w+)+)(?::[\w.]+)?")

# The registry lists the generic faults by name, as it lists those of other packages.
LISTED = {"mutants.library.registry -> mutants.generic.faults"}


def module_of(path, root):
    """`kvfuzz.case.layout` for that file below `root`; a package for its `__init__.py`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root):
    """The modules of both packages below `root`, by name."""
    paths = [path for package in ("kvfuzz", "mutants") for path in (root / package).rglob("*.py")]
    return {module_of(path, root): path for path in sorted(paths)}


def imports(path, known, named=True):
    """The modules that the file imports, anywhere in it; also the `known` ones that a string names,
    unless `named` is false."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif named and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = NAMED.fullmatch(node.value)
            if found and found[1] in known and "." in found[1]:
                yield found[1]


def room(module):
    """The place of `module` in ORDER: `kvfuzz.case` for `kvfuzz.case.layout`."""
    return ".".join(module.split(".")[:2])


def backward(root):
    """Every import that points up, as `importer -> imported`."""
    known = modules(root)
    return [
        f"{module} -> {imported}"
        for module, path in known.items()
        for imported in imports(path, known)
        if imported.split(".")[0] in ("kvfuzz", "mutants")
        and ORDER.index(room(imported)) > ORDER.index(room(module))
        and f"{module} -> {imported}" not in LISTED
    ]


def circle(root):
    """Modules that import each other in a circle, the first again at the end; empty if none do.

    Names in strings are left out: they are imported when a subject or a fault is asked for.
    """
    known = modules(root)
    graph = {
        module: {
            name for name in imports(path, known, named=False) if name in known and name != module
        }
        for module, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_module_is_in_a_room():
    """A new file says where it stands."""
    assert {room(module) for module in modules(ROOT)} == set(ORDER)


def test_no_import_points_up():
    """And kvfuzz never imports the mutants."""
    assert backward(ROOT) == []


def test_no_modules_import_each_other_in_a_circle():
    """Within a room as well."""
    assert circle(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        (
            "kvfuzz/oracle/run.py",
            "from kvfuzz.report import text",
            "kvfuzz.oracle.run -> kvfuzz.report",
        ),
        (
            "kvfuzz/case/case.py",
            "def f():\n    import kvfuzz.subjects.protocol",
            "kvfuzz.case.case -> kvfuzz.subjects.protocol",
        ),
        ("kvfuzz/case/__init__.py", "import kvfuzz.cli", "kvfuzz.case -> kvfuzz.cli"),
        ("kvfuzz/case/case.py", "import kvfuzz", "kvfuzz.case.case -> kvfuzz"),
        ("kvfuzz/case/case.py", "from kvfuzz import fuzz", "kvfuzz.case.case -> kvfuzz"),
        (
            "kvfuzz/cli/main.py",
            "from mutants.library import x",
            "kvfuzz.cli.main -> mutants.library",
        ),
        ("kvfuzz/case/case.py", 'LAZY = "kvfuzz.cli:main"', "kvfuzz.case.case -> kvfuzz.cli"),
        (
            "mutants/library/x.py",
            "import mutants.campaign",
            "mutants.library.x -> mutants.campaign",
        ),
    ],
)
def test_a_planted_import_that_points_up_is_found(tmp_path, file, line, found):
    """The test above can fail: on a function's import, on one in `__init__` and on one by name."""
    for name in ("kvfuzz/__init__.py", "kvfuzz/cli/__init__.py", file):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / file).write_text(line)
    assert backward(tmp_path) == [found]


def test_a_planted_circle_is_found(tmp_path):
    """That of two modules in one room, one of which imports the other inside a function."""
    (tmp_path / "kvfuzz").mkdir()
    (tmp_path / "kvfuzz" / "one.py").write_text("import kvfuzz.two")
    (tmp_path / "kvfuzz" / "two.py").write_text("def f():\n    from kvfuzz.one import g")
    assert set(circle(tmp_path)) == {"kvfuzz.one", "kvfuzz.two"}


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


def test_every_public_name_is_where_the_stub_says():
    """`__init__.pyi` is the list that `__init__.py` imports from."""
    assert "fuzz" in kvfuzz.__all__
    assert [name for name in kvfuzz.__all__ if not hasattr(kvfuzz, name)] == []


def test_the_light_import_test_can_fail():
    """Using the API does bring torch."""
    assert "torch" in heavy_after("import kvfuzz; kvfuzz.check")


def test_fuzzing_the_zoo_imports_neither_transformers_nor_mutants():
    """What is not named is not imported."""
    loaded = heavy_after("import kvfuzz; kvfuzz.fuzz('zoo', examples=1, seed=0)")
    assert "transformers" not in loaded
    assert "mutants" not in loaded
