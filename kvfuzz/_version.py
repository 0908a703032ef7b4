"""The version, for the build and for files that say which kvfuzz wrote them."""

__version__ = "0.1.0"
