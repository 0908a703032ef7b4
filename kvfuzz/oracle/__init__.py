"""Who decides: reference logits, tolerance, agreement and the companion laws."""
