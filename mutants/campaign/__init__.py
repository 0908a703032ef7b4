"""Runs mutants in worker processes and computes the score."""
