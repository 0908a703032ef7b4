"""A process imports what it needs and no more: start-up is most of what a short command costs."""

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

from kvfuzz.cli.entry_points import entry_points
from kvfuzz.subjects.precision import record_casts

ROOT = Path(__file__).parents[1]


def modules_after(script, **options):
    """The names of the modules that a fresh interpreter holds after `script`."""
    code = f"{script}\nimport sys; print('loaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, **options
    )
    return set(done.stdout.rpartition("loaded: ")[2].split())


LIGHT_COMMANDS = """
from kvfuzz.cli.main import main
for words in (
    "--help", "--version", "", "fuzz --help", "replay --help", "score --help", "mutants --help",
    "fzz", "fuzz", "fuzz zoo --examples 0", "fuzz zoo --nosuch", "score --fail-under 101", "replay",
    "replay nosuch", "replay .", "collect nosuch", "collect .",
):
    assert main(words.split()) in (0, 2, 3), words
"""
HEAVY = {"torch", "hypothesis", "numpy", "rich", "jinja2", "transformers"}


def test_a_command_that_computes_nothing_imports_nothing_heavy(tmp_path):
    """Helps, usage errors, `replay` and `collect` of nothing."""
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    loaded = modules_after(LIGHT_COMMANDS, cwd=tmp_path, env=environment)
    assert not HEAVY & loaded


def test_help_imports_no_more_than_click_and_the_options(tmp_path):
    """Each of these takes as long as all of kvfuzz that `--help` runs."""
    script = "from kvfuzz.cli.main import main; main(['--help'])"
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    loaded = modules_after(script, cwd=tmp_path, env=environment)
    assert not {"importlib.metadata", "kvfuzz.case.case", "json", "tempfile", "tomllib"} & loaded


def test_a_command_says_what_it_loads_before_it_imports_torch(tmp_path):
    """On standard error, so that the wait is explained and the output stays what it was."""
    (tmp_path / "torch.py").write_text("import sys; sys.exit('now torch')")
    done = subprocess.run(
        [sys.executable, "-m", "kvfuzz.cli.main", "fuzz", "zoo", "--json", "/dev/stdout"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(tmp_path), os.fspath(ROOT)])},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "loading zoo ...\nnow torch\n")


LOADING = """
import gc, weakref
from kvfuzz.cli.loading import loading
class Circle: pass
with loading("it"):
    assert not gc.isenabled()
    import torch
    circle = Circle()
    circle.itself, alive = circle, weakref.ref(circle)
    del circle
assert alive() is None
assert gc.isenabled() and gc.get_freeze_count() > 50_000 and torch.get_num_threads() == 1
before = gc.get_freeze_count()
with loading("more"):
    assert gc.isenabled()
assert gc.get_freeze_count() == before
"""


def test_loading_leaves_what_it_made_out_of_the_garbage_collection():
    """But for garbage; once in a process, and only where torch was not there before."""
    assert "torch" in modules_after(LOADING)


@pytest.mark.parametrize("group", ["kvfuzz.commands", "console_scripts", "pytest11", "nosuch"])
def test_entry_points_are_those_of_importlib(group, tmp_path, monkeypatch):
    """Of every package that is installed here, and of one that shadows another."""
    for folder, name, value in (
        ("new", "Some.Name-2", "new:x [extra]"),
        ("old", "some_name-1", "old:x"),
    ):
        path = tmp_path / folder / f"{name}.dist-info"
        path.mkdir(parents=True)
        (path / "METADATA").write_text("Name: some.name\n")
        (path / "entry_points.txt").write_text(
            f"# a comment\n[nosuch]\nthing = {value}\n\n[other]\nthing = other:x\n"
        )
    for folder in ("old", "new"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    expected = {
        entry.name: entry.value.partition("[")[0].strip()
        for entry in metadata.entry_points(group=group)
    }
    assert entry_points(group) == expected
    assert expected


def test_entry_points_are_found_in_a_zip_file(tmp_path, monkeypatch):
    """As importlib finds them."""
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("packed-1.dist-info/METADATA", "Name: packed\n")
        file.writestr("packed-1.dist-info/entry_points.txt", "[nosuch]\nthing = packed:x\n")
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    assert entry_points("nosuch") == {"thing": "packed:x"}


WHOLE_COMMANDS = """
import kvfuzz
from mutants.campaign.score import score
from tests.subjects import models
assert kvfuzz.fuzz("zoo", examples=3, seed=0).verdict == "agreed"
assert kvfuzz.fuzz(models.ForgetsOnDecode, examples=9, seed=0).explanation.location
assert score("zoo", mutants=["append.drops_the_newest"], examples=3, seed=0).results
"""


def test_no_command_imports_dynamo():
    """It takes as long as torch itself, and torch imports it where a dispatch mode does not say
    that it does without. Nor sympy, which it brings."""
    loaded = modules_after(WHOLE_COMMANDS)
    assert {"torch", "hypothesis", "kvfuzz.localize.locate"} <= loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & loaded


@pytest.mark.full(reason="imports dynamo to show that torch still does")
def test_a_dispatch_mode_that_does_not_say_so_imports_dynamo():
    """The test above can fail, with the torch that is installed."""
    loaded = modules_after(
        "from kvfuzz.subjects import precision; import torch\n"
        "with precision._UncompiledLosses(): torch.ones(1) + 1"
    )
    if hasattr(torch.utils._python_dispatch.TorchDispatchMode, "_should_skip_dynamo"):
        assert "torch._dynamo" in loaded


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_a_compiled_subject_is_watched_and_the_watch_is_not_compiled():
    """Its casts are seen, in its first run and later."""
    import torch._dynamo

    compiled = torch.compile(lambda x: (x * 2).bfloat16().float(), backend="eager")
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        found = record_casts(lambda: compiled(torch.rand(2, 3)))
        assert list(found) == [(torch.float32, torch.bfloat16)]
    assert not torch._dynamo.utils.counters["stats"]


def test_a_model_type_imports_no_other_model():
    """transformers has hundreds of them, and imports each when it is asked for."""
    pytest.importorskip("transformers")
    loaded = modules_after(
        "from kvfuzz.subjects.loading import load; load('transformers:llama').limits()"
    )
    models = {".".join(name.split(".")[:3]) for name in loaded if ".models." in name}
    packages = {name for name in models if name.startswith("transformers.models.")}
    assert packages == {"transformers.models.auto", "transformers.models.llama"}
