"""How other people's tests use kvfuzz: assertions, a pytest plugin, a state machine."""
