"""Right decoders as people write them, each in a file of its own that is copied and made wrong.

Each file defines `Decoder`, a subject, whose `length(cache)` says how many tokens a cache has seen.
"""
