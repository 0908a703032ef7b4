"""How many seeds the promises of shrinking are held to."""

import os

SEEDS = range(int(os.environ.get("KVFUZZ_SEEDS", "1")))
"""One in every run of the suite; `KVFUZZ_SEEDS=3 pytest tests/quality` takes three."""
