"""Offsetting pairs of faults: the logits agree, and the first state that differs is named."""

import pytest

from kvfuzz.localize.locate import locate
from kvfuzz.localize.traced_states import first_state
from kvfuzz.oracle.agreement import check
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, load
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import judge_case, run_mutant
from mutants.campaign.score import score
from mutants.library.mutant_scheme import with_mutant
from mutants.library.registry import find, library
from mutants.mutant import LATENT, mutant, steps

ZOO = load("zoo")
PAIRS = [m.id for m in library().values() if m.law == LATENT]


@pytest.fixture(scope="module")
def prepared():
    """Twenty-four cases of the zoo."""
    return prepare_cases("zoo", Options(), 24, 0, shrink=False)


def test_there_are_enough_of_them_at_different_sites():
    """Of the position ids, in layers and behind them."""
    assert len(PAIRS) >= 5
    assert len({find(mutant_id).site.kind for mutant_id in PAIRS}) >= 5


@pytest.mark.parametrize("mutant_id", PAIRS)
def test_the_logits_agree_and_the_declared_site_differs(mutant_id):
    """On the witness, where `locate` calls it latent."""
    faulty, case = with_mutant(ZOO, find(mutant_id)), find(mutant_id).witness
    assert check(faulty.subject(case), case).status == "agreed"
    location = locate(faulty, case)
    assert location.first is None
    assert location.latent[0].site == str(find(mutant_id).site)


@pytest.mark.parametrize("mutant_id", PAIRS)
def test_no_logits_of_a_drawn_case_differ(mutant_id):
    """The first state that does is the declared one. A design may refuse a case."""
    faulty = with_mutant(ZOO, find(mutant_id))
    located, agreed = set(), 0
    for case in draw_cases(space_of(faulty), 5, 6):
        verdict = check(faulty.subject(case), case, trace=False, probe=False)
        assert verdict.status in ("agreed", "discarded"), verdict
        agreed += verdict.status == "agreed"
        first = first_state(faulty.subject(case), case)
        located |= {first.site} if first else set()
    assert agreed >= 3
    assert located <= {find(mutant_id).site}


def test_without_a_fault_no_state_differs():
    """Of cases that the fuzzer draws for the zoo."""
    for case in draw_cases(space_of(ZOO), 5, 12):
        assert first_state(ZOO.subject(case), case) is None


def test_the_verdict_tells_that_the_logits_agree():
    """And what differs all the same; on a clean subject nothing does."""
    fault = find("offsetting.doubles_keys_and_halves_queries")
    case = fault.witness
    verdict = judge_case(LATENT, fault.into(ZOO.subject(case), case.dtype), case)
    assert (verdict.status, verdict.law) == ("diverged", LATENT)
    assert verdict.excess > 1
    assert verdict.finding.startswith(
        "latent: the logits agree, and the new query, key and value of layer 1 differs in step 1"
    )
    nothing = find("placebo.passes_through")
    clean = judge_case(LATENT, nothing.into(ZOO.subject(case), case.dtype), case)
    assert (clean.status, clean.law) == ("agreed", "latent")


@pytest.mark.parametrize("mutant_id", PAIRS)
def test_a_score_counts_it_by_the_latent_check_alone(mutant_id, prepared):
    """No logits kill it."""
    result = run_mutant(prepared, find(mutant_id))
    assert (result.state, result.killed_law) == ("killed", LATENT)


def test_the_witness_of_such_a_kill_is_shrunk_and_located():
    """As that of any other fault."""
    ids = ("offsetting.doubles_the_final_norm_and_halves_the_readout",)
    (result,) = score("zoo", mutants=ids, examples=4, seed=1, shrink=True).results
    assert (result.state, result.site) == ("killed", "final_norm")
    assert result.site == result.declared_site
    assert result.witness["case"]["schedule"] == [1]
    assert result.witness["verdict"]["law"] == LATENT
    differing = {cell["site"] for cell in result.map if cell["excess"] > 1}
    assert differing == {"final_norm"}


def test_one_without_a_site_is_refused():
    """It is told by a state, so it says which."""

    def documented(real):
        """Something that the logits do not show."""

    with pytest.raises(ValueError, match="needs a site and a witness"):
        mutant("store", law=LATENT, witness=steps(1))(documented)
