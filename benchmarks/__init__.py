"""Measures what kvfuzz costs, finds and misses. `python -m benchmarks` prints a table of ratios."""
