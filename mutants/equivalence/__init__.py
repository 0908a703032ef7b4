"""Checks that an equivalent mutant cannot be killed."""
