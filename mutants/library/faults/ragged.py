"""Wrong ragged calls: rows that take different numbers of tokens in one call take others, or what
fills them up gets in."""

import torch

from kvfuzz.case.schedule import Ragged
from kvfuzz.subjects.zoo.places import NOWHERE
from mutants.mutant import mutant, steps

UNEQUAL = steps(Ragged((3, 1)), 1, rows=2)


@mutant("text_of", site="position", witness=UNEQUAL)
def takes_what_fills_up_for_text(real):
    """Every row takes all columns of the call: what fills a short row up becomes text."""
    return lambda cache, tokens, lengths: real(
        cache, tokens, torch.full_like(lengths, tokens.shape[1])
    )


@mutant("text_of", site="position", witness=UNEQUAL)
def takes_the_least_of_every_row(real):
    """Every row takes as many tokens as the shortest one."""
    return lambda cache, tokens, lengths: real(cache, tokens, lengths.min().expand_as(lengths))


@mutant("text_of", site="position", witness=UNEQUAL)
def takes_the_lengths_of_other_rows(real):
    """The lengths are read in the reverse order of the rows."""
    return lambda cache, tokens, lengths: real(cache, tokens, lengths.flip(0))


@mutant("text_of", site="0.attention", witness=UNEQUAL)
def loses_the_last_token_of_a_short_row(real):
    """A row that is shorter than the longest one loses its last token."""
    return lambda cache, tokens, lengths: real(
        cache, tokens, lengths - (lengths < tokens.shape[1]).long()
    )


@mutant("text_of", site="position", witness=steps(2, Ragged((1, 0)), 1, rows=2))
def gives_an_idle_row_a_token(real):
    """A row that takes no token in a call takes one."""
    return lambda cache, tokens, lengths: real(cache, tokens, lengths.clamp_min(1))


@mutant("text_of", site="0.attention", witness=UNEQUAL)
def aligns_rows_on_the_right(real):
    """The tokens of a short row are taken from the end of the call, not from its beginning."""

    def text_of(cache, tokens, lengths):
        before = real(cache, tokens, lengths)[:, : cache.length]
        new = torch.arange(tokens.shape[1]) >= tokens.shape[1] - lengths[:, None]
        return torch.cat((before, new), dim=1)

    return text_of


@mutant("text_of", "placed", site="position", witness=UNEQUAL)
def counts_what_fills_up(text_of, real):
    """After a ragged call a row continues at the number of its slot, which counts what filled it
    up."""
    ragged = []

    def noting(cache, tokens, lengths):
        ragged.append(True)
        return text_of(cache, tokens, lengths)

    def placed(before, length, tokens, mask, given):
        if ragged and mask is None and given is None:
            given = (length + torch.arange(tokens.shape[1])).expand_as(tokens)
        return real(before, length, tokens, mask, given)

    return noting, placed


@mutant("text_of", "entry_places", site="0.attention", witness=UNEQUAL)
def leaves_what_fills_up_in_sight(text_of, real):
    """The filling of a short row is stored, and later calls see it."""
    ragged = []

    def noting(cache, tokens, lengths):
        ragged.append(True)
        return text_of(cache, tokens, lengths)

    def places(cache, layer, count):
        found = real(cache, layer, count)
        if not ragged or found is None:
            return found
        fed = torch.arange(count) < cache.places.shape[1]
        return found.masked_fill((found == NOWHERE) & fed, 0)

    return noting, places
