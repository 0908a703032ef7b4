"""The mutants of the built-in decoder: the registry and its faults."""
