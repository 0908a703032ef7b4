"""Locating runs and compares what it needs, and its cost does not grow with what is right."""

import gc

import pytest

import kvfuzz
from kvfuzz.localize import paths as paths_module
from kvfuzz.localize.operations.traced_case import trace_to_divergence
from kvfuzz.localize.paths import ONE_RUN, PREFIXES, STEPS, compare_paths, run_both
from kvfuzz.oracle import reference as reference_module
from tests.locate_cases import case
from tests.subjects import faulty_decoders, models, numerics
from tests.subjects.decoders import decoder

LONG = case(*(1,) * 16, vocabulary=11)


def traced(subject, program):
    """The recorded case, as `locate` records it."""
    plain = run_both(subject, program)
    return trace_to_divergence(subject, program, plain.uncached, plain.cached, True)


# Recording.


def test_nothing_is_recorded_after_the_step_that_goes_wrong():
    """The second of sixteen; what differs is the same as where that step is the last."""
    found = traced(models.ForgetsOnDecode(), LONG)
    assert [step.index for step in found.steps] == [0, 1]
    assert (found.diverging_step, found.raised) == (1, False)
    short = kvfuzz.locate(models.ForgetsOnDecode, case(1, 1, vocabulary=11))
    long = kvfuzz.locate(models.ForgetsOnDecode, LONG)
    assert (long.first.step, long.first.source) == (1, short.first.source)
    assert max(cell.step for cell in long.cells) == 1
    assert all((cell.excess > 1) == (cell.step == 1) for cell in long.cells)


class WrongAtOnce(models.Summing):
    """The first call goes wrong."""

    def cached(self, tokens, cache):
        logits, after = super().cached(tokens, cache)
        return logits if bool(cache.any()) else 1.5 * logits, after


@pytest.mark.parametrize(("schedule", "steps"), [((4, 4, 1, 1), 3), ((4, 1, 1, 1), 2), ((4,), 1)])
def test_the_first_call_is_recorded_with_one_of_another_size(schedule, steps):
    """Which axis holds the tokens shows in the shapes of both."""
    found = traced(WrongAtOnce(), case(*schedule, vocabulary=11))
    assert (found.diverging_step, len(found.steps)) == (0, steps)


def test_a_difference_within_the_noise_does_not_end_the_recording():
    """A cache that rounds on purpose differs by more than the least tolerance, and is right."""
    program = case(3, 1, 2, vocabulary=numerics.VOCAB)
    found = traced(numerics.DeclaresWhatItRounds(), program)
    assert (found.diverging_step, len(found.steps)) == (None, 3)


def test_a_chunk_as_long_as_the_heads_are_many_is_no_confusion():
    """Four heads and two chunks of four tokens: the axis of the heads is as long as the chunk in
    every call that is recorded, and the one of the tokens as long as the cache."""
    subject, alike = decoder(mixer=faulty_decoders.SharesTheWrongWay), []
    for schedule in ((4, 4), (4, 4, 1), (4, 4, 1, 2)):
        found = kvfuzz.locate(subject, case(*schedule))
        alike.append((found.first.step, found.first.position, str(found.first.site), found.cause))
    assert set(alike) == {(1, 0, "0.kv", "head grouping")}


def test_the_collector_pauses_and_goes_on():
    """Also after an error, and not where the caller has stopped it."""
    seen = []

    class Watching(models.ForgetsOnDecode):
        def cached(self, tokens, cache):
            seen.append(gc.isenabled())
            return super().cached(tokens, cache)

    class Raising(Watching):
        def trace(self, note):
            raise RuntimeError("no")

    assert kvfuzz.locate(Watching(), LONG).first is not None
    assert gc.isenabled()
    assert set(seen) == {True, False}
    with pytest.raises(RuntimeError, match="no"):
        kvfuzz.locate(Raising(), LONG)
    assert gc.isenabled()
    gc.disable()
    try:
        kvfuzz.locate(Watching(), LONG)
        assert not gc.isenabled()
    finally:
        gc.enable()


# Comparing the paths.


@pytest.fixture
def lengths(monkeypatch):
    """The lengths of the uncached runs that are made to compare the paths, in order; those that
    measure noise do not count."""
    seen = []
    for module in (paths_module, reference_module):
        real = module.run_uncached

        def counted(subject, rows, *name, real=real):
            seen.append(len(rows[0]))
            return real(subject, rows, *name)

        monkeypatch.setattr(module, "run_uncached", counted)
    return seen


def test_a_causal_path_is_run_over_few_prefixes(lengths):
    """Over one token, the one that the reference tests, and where the paths differ first: three of
    sixteen. The runs of the case are not run again where they are known."""
    program = case(6, 2, *(1,) * 8, vocabulary=11)
    subject = models.ForgetsOnDecode()
    plain = run_both(subject, program)
    lengths.clear()
    found = compare_paths(subject, program, plain)
    assert sorted(lengths) == [1, 6, 9]
    assert found == compare_paths(models.ForgetsOnDecode(), program)
    assert found.sentence.startswith("cached in one call agrees with uncached")


class OneTokenIsSpecial(models.Summing):
    """The uncached path is wrong for rows of one token."""

    def uncached(self, tokens):
        return super().uncached(tokens) * (1.5 if tokens.shape[1] == 1 else 1.0)


class NineAreSpecial(models.ForgetsOnDecode):
    """The uncached path is wrong for rows of nine tokens, where the cached one differs first."""

    def uncached(self, tokens):
        return super().uncached(tokens) * (1.5 if tokens.shape[1] == 9 else 1.0)


@pytest.mark.parametrize("subject", [OneTokenIsSpecial, NineAreSpecial])
def test_every_prefix_is_run_where_one_of_them_differs(subject, lengths):
    """The groups are then those of all prefixes."""
    program = case(6, 2, *(1,) * 8, vocabulary=11)
    found = compare_paths(subject(), program)
    assert set(range(1, 17)) <= set(lengths)
    group = {name: number for number, names in enumerate(found.groups) for name in names}
    assert group[PREFIXES] not in (group[ONE_RUN], group[STEPS])
    assert not found.prefixes_agree


def test_paths_that_agree_without_noise_need_no_noise(monkeypatch):
    """Four equal paths: the noise is not measured. Where one differs, it is."""
    asked = []
    real = paths_module.tolerance_for

    def counted(*arguments, **options):
        asked.append(options.get("noise", True))
        return real(*arguments, **options)

    monkeypatch.setattr(paths_module, "tolerance_for", counted)
    assert len(compare_paths(models.Summing(), LONG).groups) == 1
    assert asked == [False]
    assert len(compare_paths(models.ForgetsOnDecode(), LONG).groups) == 2
    assert asked == [False, False, True]


# What is said of decoders without modules.


class Counts(models.Summing):
    """Raises in its third call."""

    def cached(self, tokens, cache):
        if tokens.shape[1] == 2:
            raise RuntimeError("not two")
        return super().cached(tokens, cache)


def test_what_agrees_or_raises_was_seen():
    """No note says that the subject does not compute with torch."""
    program = case(3, 1, 2, vocabulary=11)
    assert kvfuzz.locate(models.Summing, program).notes == ()
    (note,) = kvfuzz.locate(Counts, program).notes
    assert note.startswith("no state differs up to where step 3 (extend) raises at ")
    assert note.endswith(': raise RuntimeError("not two")')


def test_the_logits_of_the_last_step_have_their_site():
    """As those of the other steps."""
    found = kvfuzz.locate(models.ForgetsOnDecode, case(3, 1, vocabulary=11))
    assert {cell.site for cell in found.cells if cell.step == 1} == {"0.kv", "logits"}
