"""The agreement law, as tests of the subject named by --kvfuzz-subject.

The hunt is cut into shards, each with a seed of its own, so that pytest-xdist can run them side by
side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfuzz.assertions import assert_agrees
from kvfuzz.hunt import EXAMPLES
from kvfuzz.loading import Options

SHARDS = 4


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
