"""The training of the audit's checkpoint."""

import math

import pytest
import torch

from kvfuzz.audit.audit import BOUNDARY
from kvfuzz.audit.sabotage import position_differences
from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects.zoo.checkpoint import CONFIG, MAX_LOSS, PATTERNS, Recipe, train


@pytest.fixture(scope="module")
def trained():
    """Another seed than the audit's own, which tests/test_audit.py trains."""
    return train(Recipe(seed=1))


def test_the_decoder_is_the_source_texts(trained):
    """Two layers, two heads of dimension two, learned positions, LayerNorm; float32."""
    config = trained.decoder.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (2, 2, 2, 2)
    assert (config.positions, config.norm, config.window) == ("learned", "layernorm", None)
    assert trained.decoder.model.flat.dtype is torch.float32
    assert not trained.decoder.model.flat.requires_grad


def test_the_loss_falls_to_the_stated_bound(trained):
    """Twice the ln 2 / 12 nats that the first token's two successors cost."""
    assert math.isclose(MAX_LOSS, 2 * math.log(2) / 12)
    assert math.log(2) / 12 < trained.loss <= MAX_LOSS


def test_training_that_misses_the_bound_is_refused():
    """One line that tells the seed, the loss and the bound."""
    with pytest.raises(InvalidSubject, match=r"training with seed 0 ended at a loss of \d\.\d{4} "):
        train(Recipe(updates=5))


def test_most_tokens_have_more_than_one_successor():
    """So that the history, which the cache holds, decides what follows."""
    successors = {}
    for pattern in PATTERNS:
        for token, following in zip(pattern, (*pattern[1:], pattern[0]), strict=True):
            successors.setdefault(token, set()).add(following)
    assert {token for token, following in successors.items() if len(following) > 1} == {
        0, 1, 2, 4, 5, 7,
    }  # fmt: skip


def test_the_same_recipe_gives_the_same_weights():
    """Whatever the global random state, default dtype, thread count and gradient mode."""
    short = Recipe(updates=20)
    first = train(short, max_loss=math.inf).decoder.model.flat
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float16)
    state = torch.get_rng_state()
    try:
        with torch.inference_mode():
            again = train(short, max_loss=math.inf).decoder.model.flat
        assert torch.get_num_threads() == 2
        assert torch.get_default_dtype() is torch.float16
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not again.is_inference()


def test_another_seed_and_another_thread_count_keep_the_boundary(trained):
    """With a margin of two, up to the last trained position."""
    decoder = trained.decoder
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            differences = [position_differences(decoder, pattern * 3) for pattern in PATTERNS]
        finally:
            torch.set_num_threads(threads)
        assert len(differences[0]) == CONFIG.max_length
        assert max(float(each.max()) for each in differences) <= BOUNDARY / 2
