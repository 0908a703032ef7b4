"""Every mutant keeps its promises; one parametrised test serves them all."""

from collections import Counter

import pytest
import torch

from kvfuzz.agreement import check, reference
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.injection import Faulty, replaced
from kvfuzz.loading import load
from kvfuzz.locating import locate
from kvfuzz.run import run_uncached
from kvfuzz.zoo.decoder import Decoder
from mutants.mutant import mutant, steps
from mutants.registry import find, library, select

ZOO = load("zoo")
SCORED = [m.id for m in library().values() if not m.placebo and not m.equivalent]
PLACEBOS = [m.id for m in library().values() if m.placebo]


@pytest.mark.parametrize("mutant_id", SCORED)
def test_a_mutant_keeps_its_promises(mutant_id):
    """Its witness reaches it and diverges without an error, first at the declared site."""
    fault = find(mutant_id)
    case = fault.witness
    subject = fault.into(ZOO.subject(case), case.dtype)
    verdict = check(subject, case)
    assert verdict.diverged
    assert verdict.error is None
    assert subject.reached
    assert locate(fault.into(ZOO.subject(case), case.dtype), case).site == fault.site


@pytest.mark.parametrize("mutant_id", SCORED + PLACEBOS)
def test_the_uncached_path_never_reaches_a_fault(mutant_id):
    """Even while the fault is in place, the uncached path does not run it."""
    fault = find(mutant_id)
    case = fault.witness or steps(2, 1)
    faulty = fault.into(ZOO.subject(case), case.dtype)
    expected = run_uncached(faulty, case.tokens)
    with replaced(faulty.places, faulty.new_cache(1).replacements):
        assert torch.equal(run_uncached(faulty, case.tokens), expected)
    assert faulty.reached == 0


@pytest.mark.parametrize("mutant_id", SCORED)
def test_the_witness_agrees_without_the_fault(mutant_id):
    """It is the fault that diverges, not the case."""
    case = find(mutant_id).witness
    assert check(ZOO.subject(case), case).status == "agreed"


@pytest.mark.parametrize("mutant_id", PLACEBOS)
def test_a_placebo_changes_nothing_bit_for_bit(mutant_id):
    """Its verdict is that of the clean decoder, and its code does run."""
    case = steps(3, 1, 2)
    clean, faulty = ZOO.subject(case), find(mutant_id).into(ZOO.subject(case), case.dtype)
    assert check(faulty, case) == check(clean, case)
    assert faulty.reached


def test_the_four_named_families_have_several_faults_each():
    """Wrong position index, wrong layer's cache, off-by-one append, skipped norm: 24 or more."""
    sizes = Counter(find(mutant_id).operator for mutant_id in SCORED)
    assert set(sizes) >= {"position", "layer", "append", "norm"}
    assert min(sizes[name] for name in ("position", "layer", "append", "norm")) >= 6
    assert len(SCORED) >= 24


def test_no_two_mutants_are_the_same_fault():
    """On a rich case every mutant gives logits of its own."""
    from kvfuzz.run import run_cached

    seen = {}
    for mutant_id in SCORED:
        config = {"layers": 3, "head_dim": 4, **find(mutant_id).witness.config}
        case = steps(2, 1, 3, 1, 2, **config)
        logits = run_cached(
            find(mutant_id).into(ZOO.subject(case), case.dtype), case
        )
        twin = next((i for i, other in seen.items() if torch.equal(other, logits)), None)
        assert twin is None, f"{mutant_id} does what {twin} does"
        seen[mutant_id] = logits


def test_each_says_what_is_wrong_as_a_bug_report_would():
    """A sentence, and no two alike."""
    descriptions = [m.description for m in library().values()]
    assert len(set(descriptions)) == len(descriptions)
    assert all(text.endswith(".") and len(text) > 20 for text in descriptions)


def test_the_library_is_sorted():
    """xdist demands the same order in every worker."""
    assert list(library()) == sorted(library())


def test_a_mutant_without_a_docstring_or_witness_is_refused():
    """When it is made, not when it is scored."""
    with pytest.raises(ValueError, match="needs a docstring"):
        mutant("store", site="0.cache", witness=steps(1))(lambda real: real)

    def documented(real):
        """Something."""

    with pytest.raises(ValueError, match="needs a site and a witness"):
        mutant("store")(documented)


def test_a_fault_without_its_target_is_refused_by_name():
    """A seam that was renamed does not silently stop being mutated."""
    with pytest.raises(InvalidSubject, match=r"there is no target 'kvfuzz.zoo.cached:gone'"):
        Faulty(Decoder(), ["kvfuzz.zoo.cached:gone"], lambda real: real)
    with pytest.raises(InvalidSubject, match="should return 2 functions"):
        Faulty(Decoder(), ["kvfuzz.zoo.cached:store", "kvfuzz.zoo.cached:fetch"], lambda a, b: a)


def test_a_fault_is_taken_out_again_also_when_the_path_raises():
    """Nothing is left in the decoder's module."""
    from kvfuzz.zoo import cached

    real = cached.store

    def fails(store):
        def dead(*_):
            raise RuntimeError("dead")

        return dead

    subject = Faulty(Decoder(), ["kvfuzz.zoo.cached:store"], fails)
    assert check(subject, steps(1)).error == "the cached path raised RuntimeError: dead"
    assert cached.store is real


def test_a_fault_has_a_fresh_state_for_each_cache():
    """A mutant that counts calls starts anew with every sequence, so cases do not depend on each
    other."""
    case = steps(2, 1, 1)
    subject = find("position.counts_calls").into(ZOO.subject(case), case.dtype)
    expected = reference(subject, case)
    first = check(subject, case)
    assert first == check(subject, case)
    assert expected.error is None


def test_mutants_are_chosen_by_subject_operator_and_id():
    """Placebos always watch, and are never scored."""
    scored, placebos = select("zoo:rope", operators=("norm",))
    assert {m.operator for m in scored} == {"norm"}
    assert [m.id for m in placebos] == PLACEBOS
    scored, _ = select("zoo", ids=("layer.reads_the_layer_below",))
    assert [m.id for m in scored] == ["layer.reads_the_layer_below"]
    with pytest.raises(UsageError, match="no mutant to score for subject 'transformers:llama'"):
        select("transformers:llama")
