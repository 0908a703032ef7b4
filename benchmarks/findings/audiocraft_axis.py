"""audiocraft: in the memory-efficient layout the rotary position is the number of heads.

repository: https://github.com/facebookresearch/audiocraft
commit: 896ec7c47f5e5d1e5aa1e4b260c4405328bf009d
file: audiocraft/modules/transformer.py
needs: einops; xformers is stubbed where it is missing: its operations are not called
verdict: diverged

Memory-efficient attention keeps keys as [batch, heads, time, features]. The position of new keys is
read from axis 1 of the kept ones, which is time in the other layout and heads in this one. So every
token after the prompt is rotated to one and the same position.
"""

from audiocraft_offset import Subject as Streaming
from checkout import hunt


class Subject(Streaming):
    """The same transformer without a limit of its context, in the other layout."""

    settings = {"memory_efficient": True}

    def cached(self, tokens, cache):
        if cache and tokens.shape[1] > 1:
            raise NotImplementedError("the library refuses chunks in this layout")
        return super().cached(tokens, cache)


if __name__ == "__main__":
    hunt(__file__)
