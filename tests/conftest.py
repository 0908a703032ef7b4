"""Shared by all tests: tiers, times, one torch thread, and a few fixtures."""

import os
import sys

import hypothesis
import pytest
import torch

from kvfuzz.case.case import Case
from tests import times

torch.set_num_threads(1)
# The tests' own properties: the same cases each time, here as in CI.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")

TIMES = pytest.StashKey[times.Times]()
COLLECTED = pytest.StashKey[tuple[pytest.Item, ...]]()
"""The tests of both tiers, whichever run."""


def pytest_addoption(parser):
    group = parser.getgroup("tests of kvfuzz")
    group.addoption(
        "--full", action="store_true", help="Also run the tests of the tier full (docs/tests.md)."
    )
    group.addoption(
        "--times", action="store_true", help="Print the CPU seconds of each module at the end."
    )
    group.addoption("--times-page", metavar="FILE", help="Write them into this page as well.")


def pytest_configure(config):
    # Tests start hundreds of processes, and each would compile our source again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if config.option.times or config.option.times_page:
        config.stash[TIMES] = times.Times()
        config.pluginmanager.register(config.stash[TIMES])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out the tests that are marked full, unless `--full` asks for them."""
    config.stash[COLLECTED] = tuple(items)
    full = [item for item in items if item.get_closest_marker("full")]
    if full and not config.option.full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in full]


def pytest_terminal_summary(terminalreporter, config):
    measured = config.stash.get(TIMES, None)
    if measured is None:
        return
    terminalreporter.section("CPU seconds by module")
    terminalreporter.write(measured.table())
    if config.option.times_page:
        measured.write(config.rootpath / config.option.times_page)


@pytest.fixture(scope="session")
def collected(request):
    """The tests that were collected, of both tiers."""
    return request.config.stash[COLLECTED]


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
