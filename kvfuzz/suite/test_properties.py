"""Tests that the subject of --kvfuzz-subject agrees.

The hunt is divided into shards, which pytest-xdist can run in parallel.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfuzz.errors import KvfuzzError
from kvfuzz.search.hunt import EXAMPLES
from kvfuzz.subjects.loading import Options, load
from kvfuzz.testing.assertions import assert_agrees

SHARDS = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Loads the subject before any test, so that an error in it is reported once, as
    pytest.UsageError."""
    option = metafunc.config.option
    try:
        load(option.kvfuzz_subject, Options(option.kvfuzz_device, option.kvfuzz_dtype))
    except KvfuzzError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.mark.parametrize("shard", range(1, SHARDS + 1))
def test_cache_agrees(
    shard: int,
    kvfuzz_subject: str,
    kvfuzz_seed: int,
    kvfuzz_examples: int | None,
    kvfuzz_options: Options,
) -> None:
    """Cached and uncached logits agree at every position of every drawn case."""
    examples = -(-(kvfuzz_examples or EXAMPLES) // SHARDS)
    assert_agrees(
        kvfuzz_subject,
        examples=examples,
        seed=kvfuzz_seed,
        shard=(shard, SHARDS),
        options=kvfuzz_options,
        folder=Path(".kvfuzz"),
    )
