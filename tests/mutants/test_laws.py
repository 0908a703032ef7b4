"""Faults that no comparison of the two paths can see, and the law that sees each."""

from collections import Counter

import pytest

from kvfuzz.errors import InvalidSubject
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.laws import COMPANIONS
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import judge_case, run_mutant
from mutants.campaign.score import score
from mutants.library.registry import library
from mutants.mutant import LATENT, VACUITY, steps

ZOO = load("zoo")
TOLD = {m.id: m for m in library().values() if m.law != "agreement"}


@pytest.fixture(scope="module")
def prepared():
    """Twenty-four cases of the zoo."""
    return prepare_cases("zoo", Options(), 24, 0, shrink=False, matrix=True)


def test_each_law_has_two_faults_of_its_own():
    """Causality, isolation, repeatability, frame; vacuity, and states that differ. The zoo
    generates nothing."""
    counts = Counter(fault.law for fault in TOLD.values())
    assert set(counts) == {*COMPANIONS, VACUITY, LATENT} - {"generation"}
    assert min(counts.values()) >= 2


@pytest.mark.parametrize("mutant_id", [i for i, m in TOLD.items() if m.law != LATENT])
def test_agreement_is_blind_to_it_and_its_law_is_not(mutant_id, prepared):
    """On no case do the paths differ; on some the law is broken."""
    result = run_mutant(prepared, TOLD[mutant_id])
    assert (result.state, result.killed_law) == ("killed", TOLD[mutant_id].law)
    assert set(result.laws) == {TOLD[mutant_id].law}
    assert len(result.laws) == len(result.kills)


@pytest.mark.parametrize("mutant_id", [i for i, m in TOLD.items() if m.law == VACUITY])
def test_what_needs_no_cache_is_never_agreed(mutant_id):
    """A case that reads its cache is vacuous on it, where it says something about the real one."""
    fault, case = TOLD[mutant_id], steps(2, 1, 2)
    assert check(ZOO.subject(case), case).status == "agreed"
    assert check(fault.into(ZOO.subject(case), case.dtype), case).status == "vacuous"
    verdict = judge_case(VACUITY, fault.into(ZOO.subject(case), case.dtype), case)
    assert verdict.finding == "a corrupted cache would have given the same logits"


def test_the_witness_of_such_a_kill_says_what_it_breaks():
    """It is shrunk, has no place where the paths differ, and is a page and JSON like any other."""
    from mutants.report.html import render
    from mutants.report.report import Report

    ids = ("frame.shows_one_entry_too_few",)
    found = score("zoo", mutants=ids, examples=8, seed=1)
    (result,) = found.results
    assert (result.state, result.killed_law, result.site) == ("killed", "frame", None)
    assert result.map == ()
    verdict = result.witness["verdict"]
    assert (verdict["status"], verdict["law"]) == ("diverged", "frame")
    assert found.to_json()["mutants"][0]["killed_law"] == "frame"
    assert "<dt>breaks</dt><dd>frame: step 1" in render(Report(found))


def test_a_fault_in_both_paths_acts_in_both():
    """With one state, that lives as long as the subject; alone it acts in the cached path."""
    import torch

    def counts(real):
        calls = 0

        def logits(*args):
            nonlocal calls
            calls += 1
            return real(*args) + calls

        return logits

    targets, tokens = ["kvfuzz.subjects.zoo.uncached:logits"], torch.tensor([[1, 2]])
    clean, one = Decoder(seed=1), Faulty(Decoder(seed=1), targets, counts)
    both = Faulty(Decoder(seed=1), targets, counts, both=True)
    assert torch.equal(one.uncached(tokens), clean.uncached(tokens))
    assert torch.equal(both.uncached(tokens), clean.uncached(tokens) + 1)
    both.new_cache(1)
    assert torch.equal(both.uncached(tokens), clean.uncached(tokens) + 2)
    assert both.reached == 2
    with pytest.raises(InvalidSubject, match="there is no target"):
        Faulty(Decoder(), ["kvfuzz.subjects.zoo.uncached:gone"], counts, both=True)
