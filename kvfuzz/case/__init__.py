"""One test input, and its result: cases, schedules, verdicts, counterexamples."""
