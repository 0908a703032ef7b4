"""The property as a test, for a tool that runs tests."""

from property import first_divergence


def test_the_paths_agree():
    """On every case."""
    assert first_divergence() is None
