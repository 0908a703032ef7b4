"""How many seeds the promises of shrinking are held to."""

import pytest

MORE = pytest.mark.full(reason="the same promise under other seeds")
SEEDS = (0, pytest.param(1, marks=MORE), pytest.param(2, marks=MORE))
"""One in the tier quick, three in full."""
