"""Faults that fit any subject: what is caught, what a design hides, and what is left as it was."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvfuzz.case.schedule import Fork, New, Switch
from kvfuzz.cli.main import cli
from kvfuzz.errors import UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.search.known_divergences import Expectation, read_expectations
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.run import run_cached, run_uncached
from mutants.campaign.cases import draw_decidable_cases, prepare_cases
from mutants.campaign.prepared_cases import PreparedCases, check_baseline
from mutants.campaign.run import run_mutant
from mutants.campaign.score import score
from mutants.generic.decorators import contents, feeding, operation
from mutants.generic.equivalence_checks import no_positions
from mutants.generic.faults.placebos import passes_on
from mutants.generic.module_hooks import modules
from mutants.generic.probe_programs import probes
from mutants.library import registry
from mutants.library.registry import all_mutants, find, generic_mutants, library, select
from mutants.mutant import steps

ROOT = Path(__file__).parents[2]
OFFERING = "tests.subjects.offering:Offering"
SCORED = [i for i, one in generic_mutants().items() if not one.is_control]
PLACEBOS = [i for i, one in generic_mutants().items() if one.placebo]


@pytest.fixture(scope="module")
def prepared():
    """Cases of a decoder that offers all but a mask."""
    return draw_decidable_cases(prepare_cases(OFFERING, Options(), 60, 5, shrink=False))


def on(prepared, name=OFFERING, **config):
    """`prepared` with other settings of its decoder, or another."""
    factory = load(name, Options(config=config))
    cases = tuple(replace(case, config=config) for case in prepared.campaign.cases)
    return PreparedCases(factory, replace(prepared.campaign, cases=cases))


HIDDEN = [
    ("positions.restart_at_each_chunk", {"place": "none"}, "change no bit of the logits"),
    ("positions.all_one_too_far", {"place": "rotary"}, "positions count relative"),
    ("positions.all_one_too_far", {"place": "recent"}, "positions count relative"),
    ("entries.layers_swapped", {"layers": 1}, "one layer"),
    ("operations.loads_the_first_layer_into_the_last", {"layers": 1}, "one layer"),
    ("entries.heads_of_values_permuted", {"heads": 1}, "have one head"),
    ("norms.weights_ignored", {"gain": False}, "weight of every norm is one"),
    ("projections.biases_ignored", {"bias": "zero"}, "bias of every projection is zero"),
    ("norms.last_twice", {"gain": "exact"}, "does nothing to its own output"),
]


@pytest.mark.parametrize(("mutant_id", "design", "reason"), HIDDEN)
def test_a_design_that_hides_a_fault_is_measured(prepared, mutant_id, design, reason):
    """It is equivalent there, with the reason, although all cases run; and killed elsewhere."""
    other = on(prepared, **design)
    few = PreparedCases(other.factory, replace(other.campaign, cases=other.campaign.cases[:30]))
    hidden = run_mutant(few, find(mutant_id))
    assert hidden.state == "equivalent"
    assert reason in hidden.reason
    assert hidden.ran == 30
    assert run_mutant(prepared, find(mutant_id)).state == "killed"


def test_entries_in_another_order_show_where_distance_counts(prepared):
    """Attention does not see the order of entries, unless by a bias for distance; a crop does."""
    mutant, uncropped = (
        find("entries.keys_and_values_backwards"),
        "tests.subjects.offering:Uncropped",
    )
    assert run_mutant(prepared, mutant).state == "killed"
    found = prepare_cases(uncropped, Options(), 40, 5, shrink=False)
    assert "in any order" in run_mutant(found, mutant).reason
    for place in ("recent", "window"):
        other = on(found, uncropped, place=place)
        assert mutant.resolve(other.factory, other.campaign.cases).equivalent is None
        assert run_mutant(other, mutant).state == "killed"


def test_positions_that_count_from_the_eighth_on_do_not_count_relative_to_each_other(prepared):
    """Rotary ones with a temperature by position: the first few tokens do not tell."""
    mutant, sharper = find("positions.all_one_too_far"), on(prepared, place="sharper")
    assert mutant.resolve(sharper.factory, sharper.campaign.cases).equivalent is None
    assert run_mutant(sharper, mutant).state == "killed"


def test_a_design_is_measured_by_the_view_of_a_subject_without_a_torch_model():
    """What its entries hide is known without a module in it, and no fault of them is invalid."""
    bare = prepare_cases("tests.subjects.offering:Bare", Options(), 40, 5, shrink=False)
    entries = {i: run_mutant(bare, find(i)) for i in SCORED if i.startswith("entries.")}
    assert {i: result.reason for i, result in entries.items() if result.state != "killed"} == {
        "entries.keys_and_values_backwards": "its entries may stand in any order, and no mask or "
        "crop tells them apart",
        "entries.last_layer_has_those_of_the_first": "its cache holds keys and values of one layer",
        "entries.layers_swapped": "its cache holds keys and values of one layer",
    }


def test_rounding_to_bfloat16_shows_in_any_dtype_but_that():
    """A subject that runs in bfloat16 rounds to it anyway."""
    mutant = find("states.rounded_to_bfloat16")
    coarse = prepare_cases(OFFERING, Options(dtype="bfloat16"), 20, 5, shrink=False)
    assert run_mutant(coarse, mutant).reason == "it runs in bfloat16"
    fine = prepare_cases(OFFERING, Options(dtype="float32"), 20, 5, shrink=False)
    assert run_mutant(fine, mutant).state == "killed"


def test_a_cache_that_no_call_changes_can_be_shared(prepared):
    """A second cache that is the first shows only where calls write into it."""
    mutant = find("operations.second_cache_is_the_first")
    functional = prepare_cases("tests.subjects.models:Summing", Options(), 40, 5, shrink=False)
    assert "can be shared" in run_mutant(functional, mutant).reason
    assert run_mutant(prepared, mutant).state == "killed"


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("copies_nothing", (3, Fork(), 2, Switch(0), 2, Switch(1), 1)),
        ("second_cache_is_the_first", (3, New(1), 2, Switch(0), 1)),
    ],
)
def test_a_buffer_that_is_written_behind_what_it_holds_cannot_be_shared(name, schedule):
    """The same call gives the same logits again, and still the buffer is another."""
    mutant = find(f"operations.{name}")
    slots = prepare_cases("tests.subjects.offering:Slots", Options(), 1, 5, shrink=False)
    slots = PreparedCases(slots.factory, replace(slots.campaign, cases=(steps(*schedule),)))
    assert mutant.resolve(slots.factory, slots.campaign.cases).equivalent is None
    assert run_mutant(slots, mutant).state == "killed"


def test_a_design_is_never_taken_from_what_survived(prepared):
    """A fault that no case shows, and that no measurement explains, has survived; and one that a
    wrong measurement explains and a case kills is killed: the subject's maker cannot mend it."""

    @contents(advice="look elsewhere")
    def writes_over_what_is_there(held):
        """Noughts take the place of noughts."""
        held.states[0].mul_(1 + 1e-15)

    result = run_mutant(prepared, writes_over_what_is_there)
    assert (result.state, result.reason) == ("survived", "look elsewhere")
    wrongly = replace(find("states.nought"), equivalent_if=lambda subject, dtype: "wrongly")
    result = run_mutant(prepared, wrongly)
    assert (result.state, result.reason) == ("killed", None)


def test_every_fault_of_a_decoder_without_a_mask_is_killed_or_explained(prepared):
    """All that it offers something for; what is left says what is lacking."""
    results = {i: run_mutant(prepared, find(i)) for i in SCORED}
    states = {i: result.state for i, result in results.items()}
    assert set(states.values()) == {"killed", "inapplicable"}
    assert sum(state == "killed" for state in states.values()) >= 80
    for mutant_id, result in results.items():
        if mutant_id.startswith("masks."):
            assert result.reason == "the subject takes no mask"
        if result.state == "inapplicable":
            assert result.reason


def test_a_hundred_faults_are_there_for_a_model_of_transformers():
    """And those that its design hides are the same whenever they are measured."""
    pytest.importorskip("transformers")
    expected = read_expectations(ROOT / "benchmarks" / "exclusions" / "transformers.json")
    llama = prepare_cases("transformers:llama", Options(), 30, 5, shrink=False, expected=expected)
    cases = list(llama.campaign.cases)
    settled = {i: find(i).resolve(llama.factory, cases) for i in SCORED}
    hidden = {i for i, one in settled.items() if one.equivalent}
    absent = {i for i, one in settled.items() if one.inapplicable}
    assert hidden == {"positions.all_one_too_far"}
    assert absent == {"projections.biases_ignored", "projections.thirds_swapped"}
    assert check_baseline(llama) is None
    for mutant_id in ("projections.swapped_where_positions_mix", "masks.forgotten"):
        assert run_mutant(llama, find(mutant_id)).state == "killed"


def test_what_raises_is_loud_also_before_it_acts(prepared):
    """Nothing that raises is a kill, or is passed over as inapplicable."""

    @feeding("tokens")
    def raises(fed):
        """Raises where a call is fed."""
        raise RuntimeError("loud")

    result = run_mutant(prepared, raises)
    assert (result.state, "RuntimeError: loud" in result.reason) == ("loud", True)


@pytest.mark.parametrize("mutant_id", PLACEBOS)
def test_a_placebo_changes_nothing_and_does_run(prepared, mutant_id):
    """The same bits, but for an attention that is written out."""
    subject = prepared.factory.subject(steps(2))
    faulty = find(mutant_id).into(subject, "float32")
    for case in probes(subject, steps(2), {"crop", "reorder", "copy", "save", "reset"}):
        torch.testing.assert_close(run_cached(faulty, case), run_cached(subject, case))
    assert faulty.reached


def test_a_killed_placebo_voids_the_score(monkeypatch):
    """As it does in the library."""
    wolf = replace(find("states.nought"), name="wolf", placebo=True)
    monkeypatch.setattr(registry, "generic_mutants", lambda: {**generic_mutants(), wolf.id: wolf})
    found = score(OFFERING, operators=["norms"], examples=20, seed=1, shrink=False)
    assert found.percent is None
    assert found.reason == "the placebo states.wolf changes nothing, but is killed"


@pytest.mark.parametrize("mutant_id", [*SCORED, *PLACEBOS])
def test_the_model_and_the_uncached_path_are_left_as_they_were(mutant_id):
    """No weight, hook or bit of the uncached path differs while caches are there, or after."""
    subject = load(OFFERING).build(0, "", {})
    before, hooks = copy.deepcopy(subject.model.state_dict()), hooks_of(subject.model)
    rows = ((3, 1, 4, 1, 5), (9, 2, 6, 5, 3))
    expected = run_uncached(subject, rows)
    faulty = find(mutant_id).into(subject, "float32")
    cache = faulty.new_cache(2)
    for chunk in torch.tensor(rows).split([3, 1, 1], 1):
        _, cache = faulty.cached(chunk, cache)
        assert torch.equal(run_uncached(faulty, rows), expected)
    assert hooks_of(subject.model) == hooks == []
    assert all(
        torch.equal(value, before[name]) for name, value in subject.model.state_dict().items()
    )
    assert check(subject, steps(3, 1, 2, rows=2)).status == "agreed"


def hooks_of(model):
    """The hooks of all modules."""
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


def test_hooks_are_gone_after_an_error():
    """A fault that raises inside the model leaves none behind."""

    @modules(lambda known, model: known.projections, "nothing")
    def raises(at):
        """Raises in a projection."""
        raise RuntimeError("loud")

    subject = load(OFFERING).build(0, "", {})
    faulty = raises.into(subject, "float32")
    with pytest.raises(RuntimeError, match="loud"):
        faulty.cached(torch.tensor([[1]]), faulty.new_cache(1))
    assert hooks_of(subject.model) == []


def test_what_a_fault_remembers_lives_as_long_as_its_cache():
    """A new cache has nothing to remember, a fork goes on from what was remembered."""
    faulty = find("tokens.last_of_the_call_before").into(load(OFFERING).build(0, "", {}), "")
    clean = faulty.subject
    one, two = torch.tensor([[1]]), torch.tensor([[2]])
    _, first = faulty.cached(one, faulty.new_cache(1))
    expected, _ = clean.cached(two, clean.new_cache(1))
    fresh, _ = faulty.cached(two, faulty.new_cache(1))
    assert torch.equal(fresh, expected)
    _, held = clean.cached(one, clean.new_cache(1))
    expected, _ = clean.cached(one, held)
    forked, _ = faulty.cached(two, faulty.copy(first))
    assert torch.equal(forked, expected)


def test_which_faults_are_scored():
    """The library's own where there are any, those of any subject elsewhere or when asked for."""
    assert {one.id for one in select("zoo")[0]} <= set(library())
    assert {one.id for one in select("zoo", anywhere=True)[0]} == set(SCORED)
    scored, watch = select(OFFERING)
    assert [one.id for one in scored] == SCORED
    assert [one.id for one in watch if one.placebo] == PLACEBOS
    assert [one.id for one in watch if one.canary] == ["placebos.rolls_the_logits"]
    assert [one.id for one in select("zoo", ids=("masks.forgotten",))[0]] == ["masks.forgotten"]
    assert not set(library()) & set(generic_mutants())
    with pytest.raises(UsageError, match=r"no mutant 'masks.forgoten' \(did you mean"):
        find("masks.forgoten")


def test_the_zoo_is_scored_by_them_when_asked(capsys):
    """Its recurrent layers and windows too."""
    found = score(
        "zoo:rope", anywhere=True, operators=["tokens"], examples=30, seed=1, shrink=False
    )
    assert found.verdict == "killed"
    assert {result.operator for result in found.results} == {"tokens"}


def test_what_the_clean_subject_refuses_is_drawn_again():
    """More cases than drawn ones agree, and all of these do; one that diverges stays, and is
    reported."""
    drawn = prepare_cases("tests.subjects.offering:Refusing", Options(), 30, 5, shrink=False)
    verdicts = [check(drawn.factory.subject(c), c).status for c in drawn.campaign.cases]
    assert "discarded" in verdicts
    found = draw_decidable_cases(drawn)
    assert verdicts.count("agreed") < len(found.campaign.cases) <= 30
    for case in found.campaign.cases:
        verdict = check(found.factory.subject(case), case, trace=False, probe=False)
        assert verdict.status == "agreed"
    salted = draw_decidable_cases(prepare_cases(SALTED, Options(), 10, 1, shrink=False))
    assert any(case.config["salt"] for case in salted.campaign.cases)
    assert check_baseline(salted).startswith(f"the unmutated {SALTED} diverges on case")


EXPECTED = Expectation("tests.*:Salted", "salted on purpose", config={"salt": True})
SALTED = "tests.subjects.offering:Salted"


def test_cases_that_are_expected_to_diverge_are_left_out():
    """Without that there is no score, and a line that says how."""
    found = score(SALTED, operators=["tokens"], examples=20, seed=1, shrink=False)
    assert found.percent is None
    assert found.reason.endswith("or leave out known divergences with --expected FILE")
    found = score(
        SALTED, operators=["tokens"], examples=20, seed=1, shrink=True, expected=[EXPECTED]
    )
    assert found.verdict == "killed"
    for result in found.results:
        if result.state == "killed":
            assert result.witness["case"]["config"] == {"salt": False}
            assert not found.cases[result.killed_by].config["salt"]


def test_the_command_takes_the_file_of_fuzz(tmp_path, capsys):
    """A witness that it writes replays."""
    file = tmp_path / "expected.json"
    file.write_text(json.dumps([{
        "subject": "tests.*:Salted", "reason": "salted on purpose", "config": {"salt": True}
    }]))  # fmt: skip
    options = ["--examples", "30", "--seed", "1", "--folder", str(tmp_path), "--no-shrink"]
    arguments = ["score", SALTED, "--expected", str(file), "--mutant", "states.nought", *options]
    assert cli.main(arguments, standalone_mode=False) == 0
    assert "1 of 1 killed" in capsys.readouterr().out
    (witness,) = (tmp_path / "witnesses").glob("*.json")
    assert json.loads(witness.read_text())["subject"] == f"mutant:states.nought@{SALTED}"
    assert cli.main(["replay", str(witness)], standalone_mode=False) == 1


def test_a_function_without_a_docstring_is_refused():
    """It is what the report says of the fault."""
    with pytest.raises(ValueError, match="needs a docstring"):
        operation("crop")(lambda call: call.go())


def test_every_fault_is_told_apart():
    """By its description, and by its id."""
    known = [one.description for one in all_mutants().values()]
    assert set(generic_mutants()) < set(all_mutants())
    assert len(set(known)) == len(known)
    assert passes_on.id in PLACEBOS
    assert len(SCORED) >= 90
    assert find("positions.count_padding").equivalent_if is no_positions
