"""What happens inside any torch model: every operation of both paths, aligned and compared."""
