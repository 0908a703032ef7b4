"""What the tests share: one torch thread, and the subjects of `tests/subjects`."""

import hypothesis
import pytest
import torch

from kvfuzz.case.case import Case

torch.set_num_threads(1)
# The tests' own properties: the same cases each time, here as in CI.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")


@pytest.fixture
def run(capsys):
    """Run the command line in this process; returns (exit code, stdout, stderr)."""
    from kvfuzz.cli.main import main

    def run(*args):
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def a_case():
    """Two rows of four tokens, fed as two and then one by one."""
    return Case(((1, 2, 3, 4), (9, 8, 7, 6)), (2, 1, 1))
