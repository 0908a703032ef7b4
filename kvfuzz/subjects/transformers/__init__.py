"""Subjects of the transformers library: `factory` makes them, `subject` is what kvfuzz calls."""
