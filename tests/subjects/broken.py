"""A module that does not import."""

raise ZeroDivisionError("at import")
