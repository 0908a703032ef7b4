"""The dtypes that a case may run in, by name; the command line offers them and imports no more."""

from __future__ import annotations

NARROW = ("bfloat16", "float16")
"""The dtypes in which a hunt runs some cases as a user would: nothing is promoted, and float32 is
torch's default dtype."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
