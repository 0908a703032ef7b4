"""The faults, one file per operator. Each is a function that takes the real stages of the cached
path and returns its own; adding one is all that it takes to have it listed and scored."""
