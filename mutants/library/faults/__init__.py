"""The faults, one file per operator. Each is a function that takes the real stages of the cached
path and returns faulty ones; a new one needs no other registration."""
