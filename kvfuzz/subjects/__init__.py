"""Finds, builds and runs subjects, the decoders under test."""
