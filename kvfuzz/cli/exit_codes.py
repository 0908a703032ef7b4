"""The exit codes of a verdict. A usage error is 2."""

EXIT_CODES = {"agreed": 0, "diverged": 1, "inconclusive": 3}
