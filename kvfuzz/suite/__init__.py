"""Tests for any subject: `pytest --pyargs kvfuzz.suite --kvfuzz-subject SUBJECT`."""
