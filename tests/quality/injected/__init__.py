"""Faults injected at known lines into copies of the modeling code of the transformers library."""
