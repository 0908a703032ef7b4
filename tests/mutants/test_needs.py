"""A fault meets the cases of a campaign with the settings that it makes sense with."""

from dataclasses import replace

import pytest

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.rounds import draw_cases
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.zoo import cached
from kvfuzz.subjects.zoo.presets import CHOICES
from mutants.campaign.cases import prepare_cases
from mutants.campaign.run import run_mutant
from mutants.campaign.score import score
from mutants.library.mutant_scheme import with_mutant
from mutants.library.registry import find, library, select
from mutants.mutant import mutant, steps

RING = find("window.keeps_the_first_of_a_long_chunk")


def test_a_fitted_case_has_the_first_setting_that_fits_in_place_of_each_that_does_not():
    """And is the same case in all else; one that fits is left as it is."""
    case = Case(((1, 2),), (1, 1), seed=3, config={"cache": "paged", "window": 5, "heads": 4})
    fitted = RING.with_required_config(case)
    settings = {"cache": "ring", "window": 5, "heads": 4, "mix": "uniform"}
    assert fitted == replace(case, config=settings)
    assert RING.with_required_config(fitted) == fitted
    assert find("norm.skips_for_keys").with_required_config(case) is case


def test_every_need_can_be_met():
    """It is of settings that the zoo draws, or that it has beside them."""
    for fault in library().values():
        for name, fit in fault.needs.items():
            known = {*CHOICES[name], *(("int8",) if name == "cache" else ())}
            assert fit
            assert set(fit) <= known, f"{fault.id}: {name}"


def test_a_mutant_as_a_subject_draws_cases_that_fit():
    """`kvfuzz fuzz mutant:ID` meets no other."""
    factory = load(f"mutant:{RING.id}")
    cases = draw_cases(space_of(factory), 0, 30)
    assert all(RING.with_required_config(case) == case for case in cases)
    assert {case.config["window"] for case in cases} == {3, 5}
    assert fuzz(f"mutant:{RING.id}", seed=0).failure.case.config["cache"] == "ring"


def test_a_setting_that_is_fixed_wins():
    """A mutant that it does not fit is not scored, and is no subject."""
    static = Options(config={"cache": "static"})
    scored, _ = select("zoo", fixed=static.config)
    assert RING not in scored
    assert find("norm.skips_for_keys") in scored
    with pytest.raises(InvalidSubject, match=r"needs .*cache in \['ring'\].*; fixed is .*static"):
        with_mutant(load("zoo", static), RING)


def test_results_are_told_by_the_number_of_the_drawn_case():
    """Of which each mutant meets its own version."""
    prepared = prepare_cases("zoo", Options(), 10, 1, shrink=False, matrix=True)
    result = run_mutant(prepared, RING)
    assert result.ran == 10
    assert set(result.kills) <= set(range(10))
    assert prepared.reference(0, RING).case.config["cache"] == "ring"
    assert prepared.reference(0).case == prepared.campaign.cases[0]


def test_a_baseline_that_fails_only_on_fitted_cases_forbids_a_score(monkeypatch):
    """The clean subject is judged on what a mutant is judged on."""
    real = cached.rope_angles
    monkeypatch.setattr(cached, "rope_angles", lambda *args: 2 * real(*args))
    ids = ("phase.angles_too_large",)
    options = Options(config={})
    result = score(
        "zoo:default", examples=5, seed=0, mutants=ids, options=options, shrink=False, workers=0
    )
    assert result.percent is None
    assert "the unmutated zoo:default diverges on case" in result.reason
    assert "with positions rope" in result.reason


def test_the_needs_of_a_file_are_those_of_its_mutants():
    """And one of them may have more, or others."""
    assert find("crop.drops_one_too_many").needs["cache"] == ("concatenated",)
    assert find("crop.leaves_its_slots_in_sight").needs["cache"] == ("static",)

    def fault(real):
        """A fault of the tests."""
        return real

    made = mutant("store", site="0.cache", witness=steps(1), needs={"layers": (3,)})(fault)
    assert made.needs == {"layers": (3,)}
    with pytest.raises(ValueError, match="declares an unknown law 'gravity'"):
        mutant("store", witness=steps(1), law="gravity")(fault)


@pytest.fixture(
    scope="module",
    params=[5, pytest.param(12, marks=pytest.mark.full(reason="the same promise on more cases"))],
)
def matrix(request):
    """Cases, all of which every mutant meets."""
    return prepare_cases("zoo", Options(), request.param, 5, shrink=False, matrix=True)


@pytest.mark.parametrize("operator", sorted({m.operator for m in library().values()}))
def test_no_fault_raises_on_a_case_that_it_meets(operator, matrix):
    """It is silent, or it would prove nothing about the checker."""
    for fault in library().values():
        if fault.operator == operator:
            result = run_mutant(matrix, fault)
            assert (fault.id, result.raised) == (fault.id, 0)
