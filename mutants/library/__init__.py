"""The mutants of the registered decoder: the registry and its faults."""
