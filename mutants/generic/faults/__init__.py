"""The generic mutants, one file per operator."""
