"""Every mutant keeps its promises; one parametrised test serves them all."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, New, Padded, Reorder, Reset, Restore, Switch
from kvfuzz.errors import InvalidSubject, UsageError
from kvfuzz.localize.traced_states import first_state
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.reference import find_reference
from kvfuzz.subjects.injection import Faulty, replaced
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached
from kvfuzz.subjects.zoo.decoder import Decoder
from mutants.campaign.run import judge_case
from mutants.library.registry import find, library, select
from mutants.mutant import LOCATED, mutant, steps

ZOO = load("zoo")
BOTH = ("mask", "positions")
SCORED = [m.id for m in library().values() if not m.placebo and not m.equivalent]
PLACEBOS = [m.id for m in library().values() if m.placebo]


@pytest.mark.parametrize("mutant_id", SCORED)
def test_a_mutant_keeps_its_promises(mutant_id):
    """Its witness reaches it and diverges without an error, first at the declared site."""
    fault = find(mutant_id)
    case = fault.witness
    subject = fault.into(ZOO.subject(case), case.dtype)
    verdict = judge_case(fault.law, subject, case)
    assert (verdict.status, verdict.law, verdict.error) == ("diverged", fault.law, None)
    assert subject.reached
    if fault.law in LOCATED:
        found = first_state(fault.into(ZOO.subject(case), case.dtype), case)
        assert found.site == fault.site


@pytest.mark.parametrize("mutant_id", [i for i in library() if not library()[i].both])
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


@pytest.mark.parametrize("mutant_id", SCORED)
def test_the_witness_fits_the_fault(mutant_id):
    """It has the settings that the fault needs, stated or by default."""
    fault = find(mutant_id)
    fitted = ZOO.subject(fault.with_required_config(fault.witness)).config
    assert ZOO.subject(fault.witness).config == fitted


@pytest.mark.parametrize("mutant_id", PLACEBOS)
def test_a_placebo_changes_nothing_bit_for_bit(mutant_id):
    """Its verdict is that of the clean decoder, and its code does run."""
    case = steps(3, 1, Crop(1), 2, Reorder((1, 0)), 2, rows=2)
    clean, faulty = ZOO.subject(case), find(mutant_id).into(ZOO.subject(case), case.dtype)
    assert check(faulty, case) == check(clean, case)
    assert faulty.reached


def test_the_four_named_families_have_several_faults_each():
    """Wrong position index, wrong layer's cache, off-by-one append, skipped norm: 24 or more."""
    sizes = Counter(find(mutant_id).operator for mutant_id in SCORED)
    assert set(sizes) >= {"position", "layer", "append", "norm"}
    assert min(sizes[name] for name in ("position", "layer", "append", "norm")) >= 6
    assert len(SCORED) >= 24


def test_the_library_has_the_operators_and_the_reports_that_it_promises():
    """Over 120 faults in over 16 operators; over 50 with a public report of their own."""
    assert len(SCORED) >= 120
    named = "position phase layer append read mask window norm projection scale dtype padding crop "
    named += "reuse recurrent shared_kv reorder isolation causality repeatability frame"
    assert {find(mutant_id).operator for mutant_id in SCORED} >= set(named.split())
    reports = [m.seen_in for m in library().values() if m.seen_in]
    assert len(reports) == len(set(reports)) >= 50
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in reports)


RICH = (
    steps(2, 1, 3, 1, 2),
    steps(3, Reorder((1, 2, 0)), 1, Crop(2), 2, Crop(1), 1, Reorder((2, 0)), 4, rows=3),
    steps(5, Fork(), 2, 1, Switch(0), 3, 1, Reorder((1, 1)), 2, Switch(1), 1, 1, rows=2),
    steps(Padded(3, "left", (1, 2)), 2, Restore(), 1, Padded(3, "right", (1, 0)), 1, 2, rows=2),
    steps(Padded(4, "left", (2, 1)), Fork(), 1, Reorder((1, 0)), 1, Crop(2), 1, 2, rows=2),
    steps(3, New(2), 2, 1, Switch(0), 1, Switch(1), Reset(), 2, 1, 2, rows=2, given=BOTH),
)


def rich(case, mutant_id):
    """`case` for a mutant: with two rows at the least, and what its own witness has."""
    config = {"layers": 3, "head_dim": 4, **find(mutant_id).witness.config}
    return find(mutant_id).with_required_config(replace(case, config=config))


def logits_of(subject, case):
    try:
        return run_cached(subject, case)
    except (CachedPathRaised, Refused) as error:
        return torch.tensor([float(hash(str(error)))])


@pytest.mark.full(reason="it runs every mutant on every rich case, and grows with the library")
def test_no_two_mutants_are_the_same_fault():
    """On rich cases every mutant gives logits of its own."""
    seen = {}
    for mutant_id in SCORED:
        fault = find(mutant_id)
        if fault.law != "agreement":
            continue
        cases = [fault.witness, *(rich(case, mutant_id) for case in RICH)]
        made = [logits_of(fault.into(ZOO.subject(c), c.dtype), c) for c in cases]
        twin = next((i for i, other in seen.items() if same(made[1:], other[1:])), None)
        if twin is not None:  # alike on those, and perhaps as good as new
            case = find(twin).witness
            theirs = logits_of(fault.into(ZOO.subject(case), case.dtype), case)
            assert not same([theirs], seen[twin][:1]), f"{mutant_id} does what {twin} does"
        seen[mutant_id] = made


def same(some, others):
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(some, others, strict=True))


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
    with pytest.raises(
        InvalidSubject, match=r"there is no target 'kvfuzz.subjects.zoo.cached:gone'"
    ):
        Faulty(Decoder(), ["kvfuzz.subjects.zoo.cached:gone"], lambda real: real)
    with pytest.raises(InvalidSubject, match="should return 2 functions"):
        Faulty(
            Decoder(),
            ["kvfuzz.subjects.zoo.cached:store", "kvfuzz.subjects.zoo.cached:fetch"],
            lambda a, b: a,
        )


def test_a_fault_is_taken_out_again_also_when_the_path_raises():
    """Nothing is left in the decoder's module."""
    from kvfuzz.subjects.zoo import cached

    real = cached.store

    def fails(store):
        def dead(*_):
            raise RuntimeError("dead")

        return dead

    subject = Faulty(Decoder(), ["kvfuzz.subjects.zoo.cached:store"], fails)
    assert check(subject, steps(1)).error == "the cached path raised RuntimeError: dead"
    assert cached.store is real


def test_a_fault_has_a_fresh_state_for_each_cache():
    """A mutant that counts calls starts anew with every sequence, so cases do not depend on each
    other."""
    case = steps(2, 1, 1)
    subject = find("position.counts_calls").into(ZOO.subject(case), case.dtype)
    expected = find_reference(subject, case)
    first = check(subject, case)
    assert first == check(subject, case)
    assert expected.error is None


def test_mutants_are_chosen_by_subject_operator_and_id():
    """Placebos always watch, and are never scored."""
    scored, watch = select("zoo:rope", operators=("norm",))
    assert {m.operator for m in scored} == {"norm"}
    assert [m.id for m in watch if m.placebo] == PLACEBOS
    assert [m.id for m in watch if not m.placebo] == ["canary.rolls_the_vocabulary"]
    scored, _ = select("zoo", ids=("layer.reads_the_layer_below",))
    assert [m.id for m in scored] == ["layer.reads_the_layer_below"]
    assert {m.subject for m in select("transformers:llama")[0]} == {"any"}


def test_a_mutant_of_another_operator_is_refused_with_both_names():
    """The two filters intersect; what is in neither is no reason to speak of other packages."""
    with pytest.raises(UsageError, match=r"both in --mutant append.prepends and in .* norm:"):
        select("zoo", ids=("append.prepends",), operators=("norm",))


def test_the_witness_of_a_mutant_is_shrunk_on_demand(run):
    """In full: no simpler version kills the mutant, and this one does."""
    name = "window.keeps_the_first_of_a_long_chunk"
    code, shown, _ = run("mutants", name, "--shrink")
    assert code == 0
    assert "no simpler version kills it" in shown
    found = next(text for text in shown.splitlines() if text.startswith("shrunk witness"))
    case = Case.from_json(json.loads(found.removeprefix("shrunk witness")))
    fault = find(name)
    assert len(case.schedule) <= len(fault.witness.schedule)
    assert judge_case(fault.law, fault.into(ZOO.subject(case), case.dtype), case).diverged
    assert "shrunk witness" not in run("mutants", name)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shrink"], "name it"),
        (["attention.newest_is_not_seen", "--shrink"], "declares no witness"),
    ],
)
def test_a_witness_that_cannot_be_shrunk_is_refused(words, message, run):
    """In one line: of no mutant, or of one that fits any subject."""
    code, _, said = run("mutants", *words)
    assert code == 2
    assert message in said


def test_a_mutant_declares_what_its_witness_exercises(run, tmp_path):
    """The features of the witness's schedule: in the object, the text and the JSON."""
    fault, file = find("crop.keeps_one_too_many"), tmp_path / "one.json"
    assert fault.exercises == ("decode", "crop")
    assert {"left padding", "mask"} <= set(find("padding.is_taken_for_text").exercises)
    assert find("norm.skips_before_attention").exercises == ()
    code, out, _ = run("mutants", fault.id, "--json", file)
    assert code == 0
    assert "killed by cases with  decode, crop" in out
    assert json.loads(file.read_text())["mutants"][0]["exercises"] == ["decode", "crop"]
