"""Finds where a case goes wrong: the first divergence, its source line and its cause."""
