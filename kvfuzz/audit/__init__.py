"""The audit of a trained checkpoint."""
