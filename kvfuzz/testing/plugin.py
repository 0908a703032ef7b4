"""The pytest plugin: options and fixtures of `kvfuzz.suite` and `mutants.suite`.

pytest --pyargs kvfuzz.suite --kvfuzz-subject mypkg.model:build -n auto
pytest --pyargs mutants.suite -n auto --junitxml score.xml
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvfuzz.case.dtypes import DTYPES

if TYPE_CHECKING:
    from kvfuzz.subjects.loading import Options

DEFAULTS = {
    "kvfuzz_subject": "zoo",
    "kvfuzz_seed": None,
    "kvfuzz_examples": None,
    "kvfuzz_device": "cpu",
    "kvfuzz_dtype": None,
}
ASKED_FOR = pytest.StashKey[bool]()
"""Whether this run uses kvfuzz: pytest loads the plugin in every run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvfuzz", "KV cache checks")
    for name, kind, metavar, text in (
        ("subject", str, "SUBJECT", "the decoder under test"),
        ("seed", int, "N", "draw the same cases as any run with seed N"),
        ("examples", int, "N", "cases to draw"),
        ("device", str, "DEVICE", "run on this device"),
        ("dtype", str, "DTYPE", "run in this dtype"),
    ):
        default = DEFAULTS[f"kvfuzz_{name}"]
        group.addoption(f"--kvfuzz-{name}", type=kind, default=default, metavar=metavar, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the seed. Raises pytest.UsageError for options that are not valid."""
    option = config.option
    if option.kvfuzz_examples is not None and option.kvfuzz_examples < 1:
        raise pytest.UsageError(
            f"--kvfuzz-examples should be at least 1, got {option.kvfuzz_examples}"
        )
    if option.kvfuzz_dtype not in (None, *DTYPES):
        raise pytest.UsageError(
            f"--kvfuzz-dtype {option.kvfuzz_dtype!r} is not one of {', '.join(DTYPES)}"
        )
    config.stash[ASKED_FOR] = _asked_for(config)
    shared: dict[str, int] = getattr(config, "workerinput", {})
    if option.kvfuzz_seed is None:
        option.kvfuzz_seed = shared.get("kvfuzz_seed", secrets.randbits(32))


def _asked_for(config: pytest.Config) -> bool:
    words = [str(word).replace("/", ".") for word in (*config.invocation_params.args, *config.args)]
    if any(f"{package}.suite" in word for word in words for package in ("kvfuzz", "mutants")):
        return True
    given = {name: value for name, value in vars(config.option).items() if name in DEFAULTS}
    return given != DEFAULTS or any(word.startswith("--kvfuzz-") for word in words)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Passes the seed to each worker of xdist, so that all draw the same cases."""
    node.workerinput["kvfuzz_seed"] = node.config.option.kvfuzz_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.stash[ASKED_FOR]:
        return None
    return f"kvfuzz: subject {config.option.kvfuzz_subject}, seed {config.option.kvfuzz_seed}"


@pytest.fixture(scope="session")
def kvfuzz_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run: the given one, or a fresh one, the same in all workers."""
    return int(request.config.option.kvfuzz_seed)


@pytest.fixture(scope="session")
def kvfuzz_subject(request: pytest.FixtureRequest) -> str:
    """The name of the subject under test."""
    return str(request.config.option.kvfuzz_subject)


@pytest.fixture(scope="session")
def kvfuzz_examples(request: pytest.FixtureRequest) -> int | None:
    """The number of cases to draw; None for the default."""
    examples: int | None = request.config.option.kvfuzz_examples
    return examples


@pytest.fixture(scope="session")
def kvfuzz_options(request: pytest.FixtureRequest) -> Options:
    """How the subject is built, with its calibration from `.kvfuzz` if there is one. Sets torch to
    one thread."""
    import torch

    from kvfuzz.search.calibrate import with_calibration
    from kvfuzz.subjects.loading import Options

    torch.set_num_threads(1)
    option = request.config.option
    options = Options(option.kvfuzz_device, option.kvfuzz_dtype)
    return with_calibration(options, option.kvfuzz_subject, Path(".kvfuzz"), None)[0]
