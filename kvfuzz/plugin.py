"""The pytest plugin: options for the suites that kvfuzz ships, and their fixtures.

pytest --pyargs kvfuzz.suite --kvfuzz-subject mypkg.model:build -n auto
pytest --pyargs mutants.suite -n auto --junitxml score.xml
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvfuzz.loading import Options


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvfuzz", "KV cache checks")
    group.addoption(
        "--kvfuzz-subject", default="zoo", metavar="SUBJECT", help="the decoder under test"
    )
    group.addoption(
        "--kvfuzz-seed", type=int, metavar="N", help="draw the same cases as any run with seed N"
    )
    group.addoption("--kvfuzz-examples", type=int, metavar="N", help="cases to draw")
    group.addoption("--kvfuzz-device", default="cpu", metavar="DEVICE", help="run on this device")
    group.addoption("--kvfuzz-dtype", metavar="DTYPE", help="run in this dtype")


def pytest_configure(config: pytest.Config) -> None:
    shared: dict[str, int] = getattr(config, "workerinput", {})
    if config.option.kvfuzz_seed is None:
        config.option.kvfuzz_seed = shared.get("kvfuzz_seed", secrets.randbits(32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist's hook: hand the seed to each worker, so that all of them draw alike."""
    node.workerinput["kvfuzz_seed"] = node.config.option.kvfuzz_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"kvfuzz: subject {config.option.kvfuzz_subject}, seed {config.option.kvfuzz_seed}"


@pytest.fixture(scope="session")
def kvfuzz_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run: the one given, or a fresh one that all workers share."""
    return int(request.config.option.kvfuzz_seed)


@pytest.fixture(scope="session")
def kvfuzz_subject(request: pytest.FixtureRequest) -> str:
    """The name of the subject under test."""
    return str(request.config.option.kvfuzz_subject)


@pytest.fixture(scope="session")
def kvfuzz_examples(request: pytest.FixtureRequest) -> int | None:
    """The number of cases to draw; None for the default."""
    examples: int | None = request.config.option.kvfuzz_examples
    if examples is not None and examples < 1:
        raise pytest.UsageError(f"--kvfuzz-examples should be at least 1, got {examples}")
    return examples


@pytest.fixture(scope="session")
def kvfuzz_options(request: pytest.FixtureRequest) -> Options:
    """How the subject is built; torch is put on one thread, as every worker should be."""
    import torch

    from kvfuzz.loading import Options

    torch.set_num_threads(1)
    return Options(request.config.option.kvfuzz_device, request.config.option.kvfuzz_dtype)
