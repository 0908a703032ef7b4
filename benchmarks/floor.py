"""The noise of a case against one uncached pass of it, in the same dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.row import Measurement
from benchmarks.timing import interleave
from kvfuzz.case.layout import layout
from kvfuzz.oracle.noise import logits_noise
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, as_factory, load
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import Rows, run_uncached

LENGTH = 64
CASES = 50


def module_floor(dtype: str, rows: int, repeats: int) -> Measurement:
    """Of a torch module, which a subject's `model` is: 4 layers, 256 features, rows of 64 tokens.
    Perturbing its 3 million weights costs the same whatever the tokens."""
    subject = as_factory(Layers).build(0, dtype, {})
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, Layers.vocab_size, (rows, LENGTH), generator=draw)
    return _floor([(subject, tuple(map(tuple, tokens.tolist())))], dtype, repeats)


def zoo_floor(name: str, dtype: str, repeats: int) -> Measurement:
    """Of built-in decoders, on the cases of a hunt. They run all sets of weights at once."""
    factory = load(name, Options(dtype=dtype))
    cases = draw_cases(space_of(factory), 0, CASES)
    built = [(factory.subject(case), layout(case).sequences) for case in cases]
    return _floor(built, dtype, repeats)


def _floor(built: list[tuple[Subject, Rows]], dtype: str, repeats: int) -> Measurement:
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    found = [run_uncached(subject, rows) for subject, rows in built]

    def measure() -> list[Tensor]:
        return [
            logits_noise(subject, rows, logits, kind)
            for (subject, rows), logits in zip(built, found, strict=True)
        ]

    finite = all(bool(noise.isfinite().all() and (noise > 0).any()) for noise in measure())
    pairs = interleave(
        measure, lambda: [run_uncached(subject, rows) for subject, rows in built], repeats
    )
    return Measurement(pairs, "", None if finite else "no noise was measured")


class Layers:
    """Torch's own layers; the cache, which is not measured here, holds the tokens."""

    vocab_size, max_length = 64, LENGTH

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(64, 256),
            torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            torch.nn.Linear(256, 64),
        ).eval()

    def uncached(self, tokens: Tensor) -> Tensor:
        embed, layers, readout = self.model
        mask = torch.nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], dtype=readout.weight.dtype
        )
        logits: Tensor = readout(layers(embed(tokens), mask=mask, is_causal=True))
        return logits

    def new_cache(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0, dtype=torch.int64)

    def cached(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat((cache, tokens), 1)
        return self.uncached(whole)[:, -tokens.shape[1] :], whole
