"""Unusual decoders, and the verdict that each deserves."""

import json

import pytest
import torch

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidCase, InvalidSubject, UsageError
from kvfuzz.oracle.agreement import check
from kvfuzz.report.text import hunt_text
from kvfuzz.search.explain import explain
from kvfuzz.search.hunt import fuzz
from kvfuzz.search.replay import replay
from kvfuzz.subjects.loading import Options, as_factory, load
from tests.subjects import models, raising

MODELS = "tests.subjects.models"


@pytest.mark.parametrize(
    ("subject", "error"),
    [
        (raising.ExitsInCached, "the cached path raised Exited: it called sys.exit(0)"),
        (raising.ExitsInUncached, "the uncached path raised Exited: it called sys.exit(5)"),
    ],
)
def test_a_path_that_ends_the_program_diverges(subject, error):
    """sys.exit(0) in a path is an error of that path, not a silent success of the hunt."""
    assert fuzz(subject, seed=0).failure.verdict.error == error


def test_a_factory_that_ends_the_program_is_refused():
    """In one line, as any other error of it."""
    with pytest.raises(InvalidSubject, match="could not be built: SystemExit: 0"):
        as_factory(raising.ExitsWhenBuilt)


def test_a_subject_that_always_raises_in_both_paths_is_inconclusive():
    """Every case is discarded and counted, and drawn again once."""
    hunt = fuzz(raising.AlwaysRaises, seed=0, examples=10)
    assert (hunt.verdict, hunt.discarded) == ("inconclusive", 20)


def test_a_model_is_run_in_its_own_dtype_and_judged_by_it():
    """A bfloat16 model whose logits are made float32 rounds as bfloat16 does, and stays one."""
    factory = as_factory(models.Upcast)
    assert factory.dtypes == ("bfloat16", "float64")
    subject = factory.build(0, "bfloat16", {})
    assert subject.model.out.weight.dtype == torch.bfloat16
    hunt = fuzz(models.Upcast, seed=0, examples=30)
    assert hunt.verdict == "agreed"
    asked = as_factory(models.Upcast, options=Options(dtype="float32"))
    assert asked.build(0, "float32", {}).model.out.weight.dtype == torch.float32


@pytest.mark.parametrize("subject", [models.MasksVocabulary, models.MasksByInfinity])
def test_a_masked_entry_of_the_vocabulary_does_not_hide_a_fault(subject):
    """Neither -1e9 nor -inf is the scale of the other logits, and one of those is named."""
    hunt = fuzz(subject, seed=0)
    first = hunt.failure.verdict.first
    assert first.token != 10
    assert abs(abs(first.cached - first.uncached) - first.difference) < 1e-6


def test_a_masked_entry_is_judged_by_its_own_size():
    """Rounding of the mask itself is no divergence; another mask is one."""
    case = Case(((1, 2),), (2,))

    class OtherMask(models.MasksVocabulary):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            logits[..., -1] *= self.slip
            return logits, cache

    OtherMask.slip = 1 + 1e-7
    assert check(OtherMask(), case).status == "agreed"
    OtherMask.slip = 1.1
    assert check(OtherMask(), case).status == "diverged"


def test_views_of_one_buffer_are_read_when_they_are_returned():
    """A decoder that reuses its output buffer, as graphs of a GPU do, is right."""
    assert fuzz(models.SharesItsBuffer, seed=0, examples=30).verdict == "agreed"


@pytest.mark.parametrize(
    "seed",
    [0, pytest.param(1, marks=pytest.mark.full(reason="the same promise under another seed"))],
)
def test_long_later_chunks_are_drawn(seed):
    """As long as the rows allow, and late in a row that is long."""
    assert fuzz(models.FailsOnLongChunks, seed=seed).verdict == "diverged"
    assert fuzz(models.FailsInLateChunks, seed=seed, max_length=60).verdict == "diverged"


def test_weights_from_the_global_generator_are_part_of_the_case(tmp_path):
    """A class that draws its own weights has the same ones in every case, and on replay."""
    one, other = (as_factory(models.DrawsItsOwnWeights).build(0, "", {}) for _ in range(2))
    assert torch.equal(one.table, other.table)
    hunt = fuzz(f"{MODELS}:DrawsItsOwnWeights", seed=0, folder=tmp_path)
    if hunt.failure:
        assert replay(hunt.path).verdict == hunt.failure.verdict


def test_the_global_generator_is_left_as_it_was():
    """A check inside a user's own program does not change what that program draws."""
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    check(models.Summing(), Case(((1, 2),), (1, 1)))
    as_factory(models.DrawsItsOwnWeights)
    assert torch.equal(torch.rand(1), expected)


def test_dropout_that_is_left_on_is_named():
    """It diverges, and the way out is a word."""
    hunt = fuzz(models.DropsOut, seed=0)
    assert "training mode, where dropout is random: call model.eval()" in hunt_text(hunt)


def test_state_that_leaks_between_calls_is_said_to_be_not_repeatable():
    """What a fresh subject does otherwise was not the case's doing alone."""
    models.LeaksState.left = 0.0
    hunt = fuzz(models.LeaksState, seed=0)
    assert hunt.verdict == "diverged"

    class Once(models.Summing):
        calls = 0

        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            Once.calls += 1
            return (logits + 1 if Once.calls == 40 else logits), cache

    assert "not repeatable" in hunt_text(fuzz(Once, seed=0))


@pytest.mark.parametrize("schedule", [(8,), (1,) * 8, (3, 5), (6, 2)])
def test_the_verdict_on_an_uncached_path_that_is_not_causal_does_not_depend_on_the_schedule(
    schedule,
):
    """Wherever the future shows, one uncached run per prefix is what counts."""
    case = Case(((1, 2, 3, 4, 5, 6, 7, 8),), schedule)
    verdict = check(models.SeesTheFutureLate(), case)
    assert (verdict.status, verdict.prefixwise) == ("agreed", True)


def test_a_trace_that_fails_costs_no_verdict(tmp_path):
    """The counterexample is written, and the failure of the trace is noted."""
    hunt = fuzz(raising.TracesBadly, seed=0, folder=tmp_path)
    assert hunt.path.exists()
    assert "not located: ValueError: there is no site" in hunt_text(hunt)


def test_a_subject_that_cannot_be_built_again_costs_no_verdict():
    """The divergence counts; a note says that no fresh subject could be run."""
    broken = False

    def build():
        subject = models.ForgetsOnDecode()
        subject.vocab_size = 0 if broken else 11
        return subject

    factory, case = as_factory(build), Case(((0, 0),), (1, 1))
    verdict = check(factory.subject(case), case)
    broken = True
    explanation = explain(factory, case, verdict)
    assert not explanation.repeatable
    assert "a fresh subject cannot be run" in explanation.notes[-1]


def test_an_object_of_a_program_is_not_called_by_a_name_that_finds_another(tmp_path):
    """The file says that it cannot name it, and the printed command leaves room for one."""
    hunt = fuzz(models.ForgetsOnDecode(seed=3), seed=0, folder=tmp_path)
    assert json.loads(hunt.path.read_text())["subject"] == "<an instance of ForgetsOnDecode>"
    assert "--subject package.module:attribute" in hunt_text(hunt)
    assert "cannot be found by name" in replay(hunt.path).error
    assert replay(hunt.path, subject=f"{MODELS}:ForgetsOnDecode").verdict.diverged


def test_a_dtype_argument_is_torchs_and_given_where_one_was_asked_for():
    """A default of the factory's own stays where none was."""
    assert as_factory(models.TakesADtype).dtypes == ("float32", "float64")
    asked = as_factory(models.TakesADtype, options=Options(dtype="float64"))
    assert asked.build(0, "float64", {}).table.dtype == torch.float64


def test_a_neighbour_is_found_also_when_the_factory_runs(tmp_path):
    """An import inside a function of the file works as it does in a script."""
    (tmp_path / "late_neighbour.py").write_text("SIZE = 11\n")
    (tmp_path / "lazy.py").write_text(
        "from tests.subjects.models import Summing\n"
        "class Lazy(Summing):\n"
        "    choices = {}\n"
        "    def __init__(self):\n"
        "        import late_neighbour\n"
        "        super().__init__()\n"
    )
    assert load(f"{tmp_path}/lazy.py:Lazy").limits().vocab_size == 11


def test_a_class_is_no_subject_for_one_case():
    """check takes an instance; fuzz takes either."""
    with pytest.raises(InvalidSubject, match="is a class: give an instance"):
        check(models.Summing, Case(((1, 2),), (1, 1)))


@pytest.mark.parametrize("tokens", [((1.5, 2),), ((True, 2),), (("1", 2),)])
def test_only_integers_are_tokens(tokens):
    """A float would be cut to one."""
    with pytest.raises(InvalidCase, match="tokens should hold integers"):
        Case(tokens, (2,))


def test_a_device_that_computes_nothing_is_refused():
    """There are no values on torch's meta device."""
    with pytest.raises(UsageError, match="device 'meta' is not available .*--device cpu always is"):
        Options(device="meta")


def test_a_file_without_an_attribute_is_told_what_it_lacks(tmp_path):
    """The most likely slip of a first use."""
    file = tmp_path / "mine.py"
    file.write_text("")
    with pytest.raises(InvalidSubject, match="which lacks :attribute"):
        load(str(file))


@pytest.mark.parametrize("subject", ["zoo\nAGREED everything", "zoo\ud800", "\x1b[2J"])
def test_a_file_cannot_print_what_it_likes(tmp_path, subject):
    """The subject's name is printed before it is imported."""
    hunt = fuzz(models.ForgetsOnDecode, seed=0, folder=tmp_path)
    data = json.loads(hunt.path.read_text()) | {"subject": subject}
    hunt.path.write_text(json.dumps(data))
    item = replay(hunt.path)
    assert "names no subject" in item.error
    assert item.error.isprintable()


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    """Python does not read it, and says so by another error than that of JSON."""
    path = tmp_path / "big.json"
    path.write_text("[" + "9" * 5000 + "]")
    assert "is not JSON" in replay(path).error
