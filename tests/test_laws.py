"""The companion laws: each names what breaks it, and says nothing against what is right."""

import json
from pathlib import Path

import pytest
import torch

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Fork, Padded, Reorder, Reset, Restore
from kvfuzz.errors import UsageError
from kvfuzz.oracle.laws import COMPANIONS, LAWS
from kvfuzz.oracle.reference import find_reference
from kvfuzz.search.judge import KnownReference, check_law, judge
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.zoo.decoder import Decoder
from tests.subjects import models
from tests.subjects.recomputing import Recomputes

CORPUS = Path(__file__).parent / "corpus"
ROWS = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10))
PROGRAM = (2, Crop(1), 1, Reorder((1, 0)), 1, Fork(), 1)


class MixesRows(Recomputes):
    """Both paths add a share of the mean over the batch: they agree with each other."""

    def _logits(self, tokens, positions, text=None):
        logits = super()._logits(tokens, positions, text)
        return logits + 0.1 * logits.mean(0, keepdim=True)


class SeesAhead(Recomputes):
    """Both paths let a token see the next one of the same run."""

    def _logits(self, tokens, positions, text=None):
        logits = super()._logits(tokens, positions, text)
        return logits + 0.1 * torch.cat((logits[:, 1:], logits[:, :1] * 0), 1)


class SeesAnotherRow(Recomputes):
    """The cached path counts token 7 in another row, where there is one."""

    def cached(self, tokens, cache, *, mask=None, positions=None):
        logits, cache = super().cached(tokens, cache, mask=mask, positions=positions)
        logits[0] += (cache.tokens[1:] == 7).sum()
        return logits, cache


class CountsCalls(Recomputes):
    """A state of the model's own, that every run moves."""

    calls = 0

    def _logits(self, tokens, positions, text=None):
        self.calls += 1
        return super()._logits(tokens, positions, text) * (1 + 1e-3 * self.calls)


class RemembersTheOther(Recomputes):
    """The first token that was ever fed by itself leaves a mark on every later run."""

    mark = 0.0

    def _logits(self, tokens, positions, text=None):
        if len(tokens) == 1:
            self.mark = 1.0
        return super()._logits(tokens, positions, text) + self.mark


@pytest.mark.parametrize("law", [law for law in COMPANIONS if law != "generation"])
@pytest.mark.parametrize(
    "preset", ["default", "static", "ring", "paged", "prefix", "recurrent", "shared_kv", "gemma"]
)
def test_the_zoo_keeps_every_law(preset, law):
    """On a program of several operations, in float64."""
    subject = load(f"zoo:{preset}").build(3, "float64", {})
    verdict = check_law(law, subject, Case(ROWS, PROGRAM, dtype="float64"))
    assert verdict.status == "agreed", (verdict.finding, verdict.reason)
    assert verdict.positions > 0


@pytest.mark.parametrize(
    ("subject", "law", "finding"),
    [
        (SeesAhead, "causality", "causality: the uncached path, with other tokens from position"),
        (MixesRows, "isolation", "isolation: the uncached path, with other tokens in the other"),
        (CountsCalls, "repeatability", "repeatability: the cached path, run again: logit["),
        (RemembersTheOther, "repeatability", "the cached path, run again after another case"),
    ],
)
def test_a_fault_that_both_paths_share_breaks_a_law(subject, law, finding):
    """Agreement alone does not see all of them."""
    case = Case(ROWS, (5,))
    if subject in (MixesRows, RemembersTheOther):
        assert kvfuzz.check(subject(), case).status == "agreed"
    verdict = check_law(law, subject(), case)
    assert (verdict.status, verdict.law) == ("diverged", law)
    assert finding in verdict.finding


@pytest.mark.parametrize(("subject", "law"), [(SeesAhead, "causality"), (MixesRows, "isolation")])
def test_a_hunt_finds_it_and_its_file_replays_the_law(subject, law, tmp_path):
    """The counterexample says which law to ask."""
    hunt = kvfuzz.fuzz(subject, seed=2, laws=[law], folder=tmp_path, examples=40)
    assert hunt.verdict == "diverged"
    if hunt.failure.verdict.law == law:
        name = f"tests.test_laws:{subject.__name__}"
        assert kvfuzz.replay(hunt.path, subject=name).verdict.law == law
        clean = kvfuzz.replay(hunt.path, subject="tests.subjects.recomputing:Recomputes")
        assert clean.verdict.status == "agreed"


def test_isolation_changes_the_other_rows_of_the_cached_path_too():
    """With the drawn tokens both paths agree, and the uncached path is right."""
    case = Case(((1, 2), (6, 3)), (1, 1))
    assert check_law("agreement", SeesAnotherRow(), case).status == "agreed"
    verdict = check_law("isolation", SeesAnotherRow(), case)
    assert verdict.diverged
    assert "the cached path, with other tokens in the other rows" in verdict.finding


def test_a_path_that_does_not_repeat_itself_is_not_blamed_for_another_law():
    """State that outlives a case breaks them all, and repeatability says what it is."""

    class Drifts(Decoder):
        calls = 0

        def cached(self, tokens, cache):
            self.calls += 1
            logits, cache = super().cached(tokens, cache)
            return logits + 0.01 * (self.calls % 3), cache

    verdict = check_law("isolation", Drifts(), Case(ROWS, (2, 3)))
    assert (verdict.status, verdict.law) == ("diverged", "repeatability")


def test_a_law_that_says_nothing_about_a_case_is_discarded():
    """One token of one row has nothing after it and no other row; no cache is shown."""
    one = Case(((1,),), (1,))
    for law in ("causality", "isolation", "frame", "generation"):
        assert check_law(law, Recomputes(), one).status == "discarded"


def test_a_law_takes_a_reference_that_is_already_known():
    """With the verdict that it gives without."""
    subject, case = Recomputes(), Case(ROWS, (5,))
    known = KnownReference(case, subject, find_reference(subject, case))
    verdict = check_law("causality", subject, case, known=known)
    assert verdict == check_law("causality", subject, case, known=None)
    assert (verdict.rows, verdict.weak_rows) == (verdict.positions, verdict.weak_positions)


def test_an_unknown_law_is_refused(tmp_path):
    """With the near one; in a counterexample too."""
    with pytest.raises(UsageError, match="did you mean causality"):
        check_law("causalty", Recomputes(), Case(ROWS, (5,)))
    with pytest.raises(UsageError, match="choose from agreement, causality"):
        kvfuzz.fuzz(Recomputes, laws=["gravity"])
    assert LAWS[0] == "agreement"
    file = tmp_path / "case.json"
    recorded = json.loads((CORPUS / "narrowest-in-float32.json").read_text())
    file.write_text(json.dumps({**recorded, "verdict": {"law": "causalty"}}))
    assert "did you mean causality" in kvfuzz.replay(file).error


class Shown(Recomputes):
    """Shows its tokens as keys and values of one layer."""

    def view(self, cache):
        entries = cache.tokens[:, None, :, None].float()
        return [(entries, entries + 0.5)]


def _changed(name, change):
    real = getattr(Shown, name)

    def method(self, *args, **given):
        return change(self, real(self, *args, **given), *args)

    return type("Changed", (Shown,), {name: method})


def _rewrites_the_first(self, answer, tokens, cache):
    logits, grown = answer
    grown.tokens = grown.tokens.clone()
    if cache.tokens.shape[1]:
        grown.tokens[:, 0] += 1
    return logits, grown


def _grows_by_one_more(self, answer, tokens, cache):
    logits, grown = answer
    grown.tokens = torch.cat((grown.tokens, grown.tokens[:, -1:]), 1)
    grown.text = torch.cat((grown.text, grown.text[:, -1:]), 1)
    return logits, grown


def _spoils_the_original(self, copied, cache):
    cache.tokens += 1
    return copied


@pytest.mark.parametrize(
    ("name", "change", "schedule", "finding"),
    [
        ("cached", _rewrites_the_first, (2, 1), "step 2 (decode): layer 0 changed the keys of"),
        ("cached", _grows_by_one_more, (2,), "step 1 (prefill): layer 0 holds [3] entries"),
        ("crop", lambda self, cut, cache, count: cache, (2, Crop(1), 1), "step 2 (crop): "),
        ("reorder", lambda self, new, cache, rows: cache, (2, Reorder((1, 0)), 1), "step 2 (reor"),
        ("load", lambda self, new, state: _plus_one(new), (2, Restore(), 1), "step 2 (restore"),
        ("reset", lambda self, new, cache: cache, (2, Reset(), 1), "step 2 (reset): layer 0 ho"),
        ("copy", _spoils_the_original, (2, Fork(), 1), "step 2 (fork) on cache 1 changed"),
    ],
)  # fmt: skip
def test_the_frame_law_names_the_step_and_the_slot(name, change, schedule, finding):
    """What an operation should have left alone, or should have done."""
    columns = sum(size for size in schedule if isinstance(size, int))
    case = Case(tuple(row[:columns] for row in ROWS), schedule)
    assert not check_law("frame", Shown(), case).diverged
    verdict = check_law("frame", _changed(name, change)(), case)
    assert verdict.status == "diverged"
    assert finding in verdict.finding


def _plus_one(cache):
    cache.tokens = cache.tokens + 1
    return cache


def test_a_window_may_forget_and_no_more_than_that():
    """A subject that says its window may hold fewer entries, down to the window."""

    class Windowed(Shown):
        windows = (2,)
        held = 2

        def view(self, cache):
            keys, values = super().view(cache)[0]
            return [(keys[:, :, -self.held :], values[:, :, -self.held :])]

    case = Case(ROWS, (2, 1, 2))
    assert check_law("frame", Windowed(), case).status == "agreed"
    verdict = check_law("frame", type("Less", (Windowed,), {"held": 1})(), case)
    assert "holds [1] entries of keys and values, 2 to 2 are due" in verdict.finding


class Generates(Recomputes):
    """Greedy search, and one that is called beam search, with and without the cache."""

    spoils = 0.0

    def generate(self, tokens, length, beams, cached):
        chosen, logits, cache = tokens, [], self.new_cache(len(tokens))
        last, cache = self.cached(tokens, cache)
        for step in range(length):
            row = last[:, -1] if cached else self.uncached(chosen)[:, -1]
            if cached and step == 2:
                row = row * (1 - self.spoils)
            logits.append(row)
            token = row.argmax(-1, keepdim=True)
            chosen = torch.cat((chosen, token), 1)
            last, cache = self.cached(token, cache)
        return chosen[:, -length:], torch.stack(logits, 1)


def test_generation_is_the_same_with_and_without_the_cache():
    """Each prompt of the first step is continued both ways."""
    assert check_law("generation", Generates(), Case(ROWS, (3, 2))).status == "agreed"
    hunt = kvfuzz.fuzz(Generates, seed=0, examples=40)
    assert hunt.exercised["generation"] >= 5


def test_a_generation_that_differs_names_the_token():
    """With the logits behind it, which tell it from a tie."""
    wrong = type("Wrong", (Generates,), {"spoils": 2.0})
    verdict = check_law("generation", wrong(), Case(ROWS, (3, 2)))
    assert (verdict.status, verdict.law) == ("diverged", "generation")
    assert verdict.finding.startswith("generation: greedy search: token 3 of row 0 is ")
    assert "x the allowed" in verdict.finding


def test_a_tie_is_no_divergence():
    """Rounding may choose between equals."""

    class Tied(Generates):
        def generate(self, tokens, length, beams, cached):
            found, logits = super().generate(tokens, length, beams, False)
            return (found + 1 if cached else found), logits

    assert check_law("generation", Tied(), Case(ROWS, (3, 2))).status == "agreed"


def test_a_generation_that_raises_with_its_cache_alone_diverges():
    """And one that raises both ways, or refuses, says nothing."""

    class Raises(Generates):
        alone = True

        def generate(self, tokens, length, beams, cached):
            if cached or not self.alone:
                raise RuntimeError("no such slot")
            return super().generate(tokens, length, beams, cached)

    verdict = check_law("generation", Raises(), Case(ROWS, (3, 2)))
    assert "greedy search raised with its cache: RuntimeError: no such slot" in verdict.finding
    both = type("Both", (Raises,), {"alone": False})
    assert check_law("generation", both(), Case(ROWS, (3, 2))).status == "discarded"


def test_repeatability_is_not_vacuous_where_cells_of_the_table_are_padding():
    """It changes no input, so no input that it changed can lack an effect."""
    case = Case(ROWS, (Padded(3, "left", (0, 1)), 2), given=("mask",))
    assert check_law("repeatability", Recomputes(), case).status == "agreed"


def test_a_path_that_raises_the_second_time_does_not_repeat_itself():
    """Agreement has run it once; that it cannot run again is a state that outlives a case."""

    class Once(Recomputes):
        caches = 0

        def new_cache(self, batch):
            self.caches += 1
            if self.caches == 2:
                raise RuntimeError("the slot is taken")
            return super().new_cache(batch)

    verdict = check_law("repeatability", Once(), Case(ROWS, (2, 3)))
    assert verdict.status == "diverged"
    assert verdict.finding == (
        "repeatability: the cached path, run again, raised RuntimeError: the slot is taken"
    )


@pytest.mark.parametrize("error", [AssertionError, ZeroDivisionError, RuntimeError])
def test_a_path_that_raises_on_the_changed_input_says_nothing(error):
    """Whatever it raises: the tokens were the law's idea, not the case's."""

    class Picky(Recomputes):
        def uncached(self, tokens):
            if bool((tokens == 11).any()):
                raise error("no elevens")
            return super().uncached(tokens)

    verdict = check_law("causality", Picky(), Case(((1, 2, 3, 10),), (2, 2)))
    assert (verdict.status, verdict.reason) == (
        "discarded",
        f"a path raised {error.__name__}: no elevens",
    )


def test_a_calibration_counts_in_a_law_too():
    """A backend whose kernels differ with the number of rows is allowed what it was measured at."""

    class Rounds(Decoder):
        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return logits * (1 + 1e-4 * len(tokens)), cache

    case = Case(ROWS, (2, 3))
    assert check_law("isolation", Rounds(), case).diverged
    assert check_law("isolation", Rounds(), case, leeway=100.0).status == "agreed"


def test_a_law_that_the_least_tolerance_breaks_is_judged_by_the_measured_one():
    """Rows that run alone round otherwise, within the noise of a model that passes through half
    precision."""

    class RoundsByBatch(models.Summing):
        def uncached(self, tokens):
            return self._rounded(super().uncached(tokens), tokens)

        def cached(self, tokens, cache):
            logits, cache = super().cached(tokens, cache)
            return self._rounded(logits, tokens), cache

        def _rounded(self, logits, tokens):
            if logits.dtype == torch.float64:
                return logits
            return logits.half().to(logits.dtype) * (1 + self.share * (len(tokens) == 1))

    case = Case(ROWS, (2, 3))
    for share, diverged in ((1e-4, False), (0.1, True)):
        subject = RoundsByBatch()
        subject.share = share
        found = judge(subject, case, "isolation", trace=False)
        assert (found.agreement.basis, found.companion.diverged) == ("least", diverged)
