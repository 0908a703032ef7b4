"""The dtypes that a case may run in, by name; the command line offers them and imports no more."""

from __future__ import annotations

DTYPES = ("float64", "float32", "bfloat16", "float16")
