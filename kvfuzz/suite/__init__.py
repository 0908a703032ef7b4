"""Tests to run against a subject of one's own: `pytest --pyargs kvfuzz.suite`."""
