"""whisper: a chunk of several tokens on a filled cache gets the causal mask of an empty one.

repository: https://github.com/openai/whisper
commit: c0d2f624c09dc18e709e37c2ad90c039a4eb72a2
file: whisper/model.py
needs: numba, tiktoken, more-itertools
verdict: diverged

`is_causal` aligns its mask at the top left: query i sees keys 0 to i. With k cached keys query i
stands at position k + i, so it misses the k newest keys that it should see.
"""

import torch
from checkout import hunt, library

AUDIO = (1, 6, 32)


class Subject:
    """The text decoder, over one drawn piece of audio. Hooks fill the cache."""

    vocab_size, max_length = 50, 32

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        whisper = library("whisper.model")
        text = {"n_vocab": 50, "n_text_ctx": 32, "n_text_state": 32}
        audio = {"n_mels": 8, "n_audio_ctx": 6, "n_audio_state": 32, "n_audio_head": 2}
        layers = {"n_audio_layer": 1, "n_text_head": 2, "n_text_layer": 2}
        self.model = whisper.Whisper(whisper.ModelDimensions(**text, **audio, **layers)).eval()
        torch.nn.init.normal_(self.model.decoder.positional_embedding)
        self.audio = torch.randn(AUDIO)

    def heard(self, tokens):
        weight = self.model.decoder.token_embedding.weight
        return self.audio.to(weight).expand(len(tokens), -1, -1)

    def uncached(self, tokens):
        return self.model.decoder(tokens, self.heard(tokens))

    def new_cache(self, batch):
        return {}

    def cached(self, tokens, cache):
        cache, hooks = self.model.install_kv_cache_hooks(cache)
        try:
            return self.model.decoder(tokens, self.heard(tokens), kv_cache=cache), cache
        finally:
            for hook in hooks:
                hook.remove()


if __name__ == "__main__":
    hunt(__file__)
