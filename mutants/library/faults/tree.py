"""Wrong trees of candidates: a candidate sees others than those that it follows, or a row keeps
another branch."""

import torch

from kvfuzz.case.schedule import Tree
from mutants.mutant import mutant, steps

NEEDS = {
    "cache": ("concatenated", "static", "paged", "prefix"),
    "mix": ("uniform", "alternating", "shared_kv"),
}
FORKED = steps(1, Tree((-1, -1), (1,)), 1)
DEEP = steps(1, Tree((-1, 0, 1), (2,)), 1)
TWO_ROWS = steps(1, Tree((-1, -1), (0, 1)), 1, rows=2)


@mutant("branch_places", site="0.attention", witness=FORKED)
def sees_other_branches(real):
    """A candidate sees all candidates before it, as the tokens of a chunk do."""

    def places(cache, own):
        count = len(own.queries[0])
        branches, cache.branches = cache.branches, torch.ones(count, count).tril().bool()
        found = real(cache, own)
        cache.branches = branches
        return found

    return places


@mutant("branch_places", site="0.attention", witness=DEEP)
def sees_its_parent_alone(real):
    """A candidate sees itself and its parent, and none that the parent follows."""

    def places(cache, own):
        branches = cache.branches
        far = branches.sum(1)[:, None] - branches.sum(1) > 1
        cache.branches = branches & ~far
        found = real(cache, own)
        cache.branches = branches
        return found

    return places


@mutant("candidate_positions", site="position", witness=FORKED)
def takes_the_number_for_the_depth(real):
    """The position of a candidate counts all candidates before it, also those of other branches."""

    def positions(cache, tokens):
        found = real(cache, tokens)
        return found[:, :1] + torch.arange(tokens.shape[1])

    return positions


@mutant("candidate_positions", site="position", witness=DEEP)
def puts_all_candidates_at_one_position(real):
    """All candidates stand at the position of the next token."""
    return lambda cache, tokens: real(cache, tokens)[:, :1].expand(tokens.shape)


@mutant(".operations:accept", site="0.cache", witness=FORKED)
def keeps_the_first_branch(real):
    """Every row keeps the first candidate, whichever was accepted."""
    return lambda cache, candidates: real(cache, candidates.clamp_max(0))


@mutant(".operations:accept", site="0.cache", witness=TWO_ROWS)
def keeps_the_branch_of_the_first_row(real):
    """All rows keep the branch that the first one accepts."""
    return lambda cache, candidates: real(cache, candidates[:1].expand_as(candidates))


@mutant(".operations:kept_of", site="position", witness=DEEP)
def keeps_the_last_candidate_alone(real):
    """A row keeps the accepted candidate without those that it follows."""

    def kept(branches, candidates):
        last = torch.arange(len(branches)) == candidates[:, None]
        return real(branches, candidates) & last

    return kept


@mutant(".operations:kept_of", site="position", witness=FORKED)
def keeps_all_candidates(real):
    """Candidates that are not accepted stay in the cache."""
    return lambda branches, candidates: torch.ones_like(real(branches, candidates))


@mutant(".operations:kept_of", site="position", witness=DEEP)
def loses_the_last_accepted(real):
    """Of the accepted branch the last candidate is dropped."""

    def kept(branches, candidates):
        return real(branches, candidates) & (torch.arange(len(branches)) != candidates[:, None])

    return kept


@mutant(".operations:kept_of", site="position", witness=steps(1, Tree((-1,), (-1,)), 1))
def keeps_a_candidate_where_none_is_accepted(real):
    """A row that accepts nothing keeps the first candidate."""
    return lambda branches, candidates: real(branches, candidates.clamp_min(0))
