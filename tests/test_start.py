"""A process imports what it needs and no more: start-up is most of what a short command costs."""

import subprocess
import sys

import pytest
import torch

from kvfuzz.subjects.precision import record_casts


def modules_after(script, **options):
    """The names of the modules that a fresh interpreter holds after `script`."""
    code = f"{script}\nimport sys; print('loaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, **options
    )
    return set(done.stdout.rpartition("loaded: ")[2].split())


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


@pytest.mark.full("imports dynamo to show that torch still does")
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
