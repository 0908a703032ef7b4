"""Scores for people: terminal, HTML, and the witness files."""
