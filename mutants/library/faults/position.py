"""Wrong position index: new tokens get the wrong positions."""

import torch

from mutants.mutant import mutant, steps


def _within(config, index):
    """Clamps `index` to the table of positions, so that the fault stays silent and raises no
    error."""
    return index.clamp(0, config.max_length - 1)


@mutant("position_index", site="position", witness=steps(1))
def one_too_far(real):
    """Every token gets the position after its own."""
    return lambda config, cache, tokens: _within(config, real(config, cache, tokens) + 1)


@mutant("position_index", site="position", witness=steps(2))
def one_behind(real):
    """Every token gets the position before its own; the first keeps 0."""
    return lambda config, cache, tokens: _within(config, real(config, cache, tokens) - 1)


@mutant("position_index", site="position", witness=steps(1, 1), seen_in="ml-explore/mlx-lm#93")
def restarts_at_each_chunk(real):
    """Positions start at 0 in every call, whatever the cache holds."""
    return lambda config, cache, tokens: torch.arange(tokens.shape[1], device=tokens.device)


@mutant("position_index", site="position", witness=steps(1, 1), seen_in="skyzh/tiny-llm#46")
def counts_first_chunk_twice(real):
    """After the first call, positions count the length of the prompt twice."""
    prompt = 0

    def position_index(config, cache, tokens):
        nonlocal prompt
        offset = prompt
        if cache.length == 0:
            prompt = tokens.shape[1]
        return _within(config, real(config, cache, tokens) + offset)

    return position_index


@mutant("position_index", site="position", witness=steps(1, 1, 1))
def stops_after_the_prompt(real):
    """Positions stop advancing while decoding: every token after the prompt gets the first position
    after it."""
    prompt = None

    def position_index(config, cache, tokens):
        nonlocal prompt
        prompt = tokens.shape[1] if prompt is None else prompt
        return real(config, cache, tokens).clamp(max=prompt)

    return position_index


@mutant("position_index", site="position", witness=steps(1, 1))
def stays_at_the_last_of_the_prompt(real):
    """Positions are clamped to the last one of the prompt."""
    prompt = None

    def position_index(config, cache, tokens):
        nonlocal prompt
        prompt = tokens.shape[1] if prompt is None else prompt
        return real(config, cache, tokens).clamp(max=prompt - 1)

    return position_index


@mutant("position_index", site="position", witness=steps(2))
def one_for_the_whole_chunk(real):
    """All tokens of a chunk get the position of the first one."""
    return lambda config, cache, tokens: real(config, cache, tokens)[..., :1].repeat_interleave(
        tokens.shape[1], -1
    )


@mutant("position_index", site="position", witness=steps(2, 1))
def counts_calls(real):
    """Positions start at the number of earlier calls, as if each had fed one token."""
    calls = 0

    def position_index(config, cache, tokens):
        nonlocal calls
        calls += 1
        return torch.arange(tokens.shape[1], device=tokens.device) + calls - 1

    return position_index


@mutant("position_index", site="position", witness=steps(2))
def reversed_in_the_chunk(real):
    """The positions of a chunk are in reverse order."""
    return lambda config, cache, tokens: real(config, cache, tokens).flip(-1)


@mutant("position_index", site="position", witness=steps(1, 1))
def starts_at_the_new_length(real):
    """On a filled cache, positions start at the length after the call's own append, not before
    it."""

    def position_index(config, cache, tokens):
        index = real(config, cache, tokens)
        return _within(config, index + tokens.shape[1]) if cache.length else index

    return position_index


@mutant("position_index", site="position", witness=steps(2, 2))
def uncounted_last_token_of_a_chunk(real):
    """A chunk of several tokens counts as one token less: every later position is one too low."""
    lost = 0

    def position_index(config, cache, tokens):
        nonlocal lost
        index = _within(config, real(config, cache, tokens) - lost)
        lost += tokens.shape[1] > 1
        return index

    return position_index


@mutant("embed", site="position", witness=steps(1), sizes={"float64": 1e-12, "float32": 3e-5})
def drifts_to_the_next_record(real, size):
    """A fraction `size` of each position embedding comes from the next position."""

    def embed(config, weights, tokens, index):
        exact = real(config, weights, tokens, index)
        after = real(config, weights, tokens, _within(config, index + 1))
        return (1 - size) * exact + size * after

    return embed


@mutant(
    "position_index",
    site="position",
    witness=steps(4, 1, window=3),
    seen_in="rajveer43/VeloxQuant-MLX#389",
    needs={"window": (3, 5), "cache": ("concatenated", "static", "paged", "prefix")},
)
def counts_what_the_window_keeps(real):
    """Positions count only the tokens that the window keeps, not those that it has evicted."""

    def position_index(config, cache, tokens):
        evicted = max(cache.length - config.window, 0)
        return _within(config, real(config, cache, tokens) - evicted)

    return position_index
