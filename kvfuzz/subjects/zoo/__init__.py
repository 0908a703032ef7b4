"""The built-in decoder: small, with two separate paths, `uncached` and `cached`, over one set of
weights, and several kinds of storage. Mutants replace functions of its cached path."""
