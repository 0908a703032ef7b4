"""The shrunk program is the story of the bug, whatever the seed."""

import pytest
import torch

import kvfuzz
from kvfuzz.case.schedule import schedule_text
from tests.seeds import SEEDS
from tests.subjects.recomputing import Recomputes, TokenCache


class CropsOneLess(Recomputes):
    def crop(self, cache, count):
        return super().crop(cache, count - 1)


class CropKeepsThatMany(Recomputes):
    """crop(n) keeps n."""

    def crop(self, cache, count):
        return TokenCache(cache.tokens[:, :count], cache.text[:, :count])


class IgnoresRows(Recomputes):
    def reorder(self, cache, rows):
        return super().reorder(cache, torch.arange(len(rows)).clamp(max=len(cache.tokens) - 1))


class TilesRows(Recomputes):
    """Repeats rows as [0, 1, 0, 1], not [0, 0, 1, 1]."""

    def reorder(self, cache, rows):
        if len(set(rows.tolist())) < len(rows):
            rows = torch.arange(len(rows)) % len(cache.tokens)
        return super().reorder(cache, rows)


class SharesForks(Recomputes):
    def cached(self, tokens, cache, *, mask=None, positions=None):
        logits, grown = super().cached(tokens, cache, mask=mask, positions=positions)
        cache.tokens, cache.text = grown.tokens, grown.text
        return logits, cache

    def copy(self, cache):
        return cache


class KeepsOnReset(Recomputes):
    def reset(self, cache):
        return cache


class LosesTheLast(Recomputes):
    positions_from_mask = False

    def cached(self, tokens, cache):
        return super().cached(tokens, cache)

    def load(self, state):
        return TokenCache(state["tokens"][:, :-1], state["text"][:, :-1])


class OneCacheForAll(Recomputes):
    """The cache lives in the model, and a second one overwrites it."""

    crop = reorder = copy = save = load = reset = None

    def new_cache(self, batch):
        self.held = super().new_cache(batch)
        return "mine"

    def cached(self, tokens, cache, *, mask=None, positions=None):
        logits, self.held = super().cached(tokens, self.held, mask=mask, positions=positions)
        return logits, cache


class CountsPadding(Recomputes):
    """Without positions, padding counts as text."""

    def cached(self, tokens, cache, *, mask=None, positions=None):
        held = torch.cat((cache.tokens, tokens), 1)
        text = torch.cat((cache.text, torch.ones_like(tokens).bool()), 1) if mask is None else mask
        places = torch.arange(held.shape[1]).expand(held.shape)
        if positions is not None:
            places = (text.cumsum(1) - 1).clamp(min=0)
        return self._logits(held, places, text)[:, -tokens.shape[1] :], TokenCache(held, text)


class ForgetsOldPadding(Recomputes):
    def cached(self, tokens, cache, *, mask=None, positions=None):
        if mask is not None:
            mask = mask.clone()
            mask[:, : cache.tokens.shape[1]] = True
        return super().cached(tokens, cache, mask=mask, positions=positions)


class SeesRightPadding(Recomputes):
    """Treats all slots of a call that ends in padding as text."""

    def _logits(self, tokens, positions, text=None):
        if text is not None and not bool(text[:, -1].all()):
            text = torch.ones_like(text)
        return super()._logits(tokens, positions, text)


class IgnoresPositions(Recomputes):
    positions_from_mask = False

    def cached(self, tokens, cache, *, mask=None, positions=None):
        held = torch.cat((cache.tokens, tokens), 1)
        text = torch.cat((cache.text, torch.ones_like(tokens).bool()), 1) if mask is None else mask
        places = torch.arange(held.shape[1]).expand(held.shape)
        return self._logits(held, places, text)[:, -tokens.shape[1] :], TokenCache(held, text)


STORIES = {
    CropsOneLess: "[1, crop 1, 1]",
    CropKeepsThatMany: "[1, crop 1, 1]",
    IgnoresRows: "[1, reorder [1, 0], 1]",
    TilesRows: "[1, repeat [0, 0], 1]",
    SharesForks: "[1, fork, 1, switch 0, 1]",
    KeepsOnReset: "[1, reset, 1]",
    LosesTheLast: "[1, restore, 1]",
    OneCacheForAll: "[1, new of 1, switch 0, 1]",
    CountsPadding: "[2 padded left [1]]",
    ForgetsOldPadding: "[2 padded left [1], 1]",
    SeesRightPadding: "[2 padded right [1], 2 padded right [1]]",
    IgnoresPositions: "[2 padded left [1]]",
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("subject", "story"), STORIES.items(), ids=lambda item: str(item))
def test_a_fault_shrinks_to_its_story(subject, story, seed):
    """The fewest steps and tokens, and only as many rows as the fault needs."""
    hunt = kvfuzz.fuzz(subject, seed=seed)
    assert hunt.cases <= 100
    case = hunt.failure.case
    assert hunt.failure.verdict.law == "agreement"
    assert schedule_text(case.schedule) == story
    rows = max(step.batch for step in case.steps())
    assert rows == (2 if "[1, 0]" in story or "[0, 0]" in story else 1)
