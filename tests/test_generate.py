"""Generation, with the cache and without it, by one rule of choice."""

import pytest
import torch

from kvfuzz.audit.generate import Sampling, generate_cached, generate_uncached, next_token
from kvfuzz.errors import UsageError
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder


@pytest.fixture(scope="module")
def decoder():
    return Decoder(DecoderConfig(vocab_size=16, max_length=12, head_dim=8))


@pytest.mark.parametrize("sampling", [None, Sampling(1.3, 5, 3), Sampling(0.5, 16, 4)])
def test_both_paths_choose_the_same_tokens(decoder, sampling):
    """Each from its own logits; the same seed twice gives the same tokens twice."""
    tokens = generate_cached(decoder, (3, 1), 11, sampling)
    assert len(tokens) == 11
    assert generate_uncached(decoder, (3, 1), 11, sampling) == tokens
    assert generate_cached(decoder, (3, 1), 11, sampling) == tokens


def test_greedy_takes_the_largest_and_so_does_a_top_k_of_one():
    """Whatever the temperature."""
    logits = torch.tensor([0.0, 2.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    assert next_token(logits, None, generator) == 1
    assert next_token(logits, Sampling(9.0, 1), generator) == 1


def test_top_k_draws_no_other_token():
    """And draws each of the k."""
    logits = torch.tensor([0.0, 2.0, 1.0, 0.5])
    generator = torch.Generator().manual_seed(0)
    drawn = {next_token(logits, Sampling(2.0, 2), generator) for _ in range(50)}
    assert drawn == {1, 2}


def test_temperature_sharpens_and_flattens():
    """A low one draws the largest nearly always, a high one nearly evenly."""
    logits = torch.tensor([0.0, 1.0])
    generator = torch.Generator().manual_seed(0)

    def share(temperature):
        return sum(next_token(logits, Sampling(temperature, 2), generator) for _ in range(500))

    assert share(0.1) == 500
    assert 200 < share(100.0) < 300


def test_sampling_draws_from_its_own_generator(decoder):
    """The global random state is neither read nor moved."""
    torch.manual_seed(1)
    first = generate_cached(decoder, (1,), 8, Sampling(1.5, 8, 2))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert generate_cached(decoder, (1,), 8, Sampling(1.5, 8, 2)) == first
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: Sampling(temperature=0.0), "temperature should be positive, got 0.0"),
        (lambda d: Sampling(temperature=float("nan")), "temperature should be positive, got nan"),
        (lambda d: Sampling(top_k=0), "top_k should be at least 1, got 0"),
        (
            lambda d: generate_cached(d, (1,), 1, Sampling(top_k=17)),
            "top_k 17 is larger than the vocab_size 16",
        ),
        (lambda d: generate_uncached(d, (), 1), "a prompt needs at least one token, got none"),
        (
            lambda d: generate_cached(d, (16,), 1),
            "prompt token 16 is out of range (vocab_size 16)",
        ),
        (
            lambda d: generate_cached(d, (1,), 0),
            "the number of tokens to generate should be at least 1, got 0",
        ),
        (
            lambda d: generate_uncached(d, (1, 2), 12),
            "a prompt of 2 and 12 more tokens feed 13, more than the max_length 12",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_in_one_line(decoder, make, message):
    """With the value in the message."""
    with pytest.raises(UsageError) as caught:
        make(decoder)
    assert str(caught.value) == message
