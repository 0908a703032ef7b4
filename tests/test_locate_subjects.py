"""`kvfuzz.locate` on other kinds of subjects, on paths that raise and on clean subjects; and what
it must not change."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn.modules import module as torch_modules

import kvfuzz
from kvfuzz.errors import InvalidCase
from kvfuzz.localize.operations import source_lines
from kvfuzz.report.text import hunt_text
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.loading import as_factory, load
from tests.locate_cases import PLAIN, case
from tests.subjects import decoders, faulty_decoders, models, numerics
from tests.subjects.decoders import (
    AllocatedDecoder,
    Decoder,
    PaddedDecoder,
    RecurrentDecoder,
    decoder,
)
from tests.subjects.faulty_decoders import line_of
from tests.subjects.recomputing import Recomputes


class Plain(models.Summing):
    """Functions of tensors, without a module."""

    def cached(self, tokens, cache):
        if tokens.shape[1] == 1:
            cache = cache * 1.5
        return super().cached(tokens, cache)


def test_functions_of_tensors_are_located():
    """They need no module."""
    found = kvfuzz.locate(Plain, case(3, 1, 2, vocabulary=11))
    assert found.first.source.text == "cache = cache * 1.5"
    assert (found.first.step, found.first.position, found.first.module) == (1, 3, None)


class Traces(models.ForgetsOnDecode):
    """Reports its sums."""

    note = None

    def trace(self, note):
        @contextmanager
        def inside():
            self.note = note
            yield
            self.note = None

        return inside()

    def noted(self, sums):
        if self.note is not None:
            self.note("kv", 0, sums)
            self.note("logits", None, sums @ self.out)

    def uncached(self, tokens):
        self.noted(self.table[tokens].cumsum(1))
        return super().uncached(tokens)

    def cached(self, tokens, cache):
        cache = torch.zeros_like(cache) if tokens.shape[1] == 1 else cache
        self.noted(cache[:, None] + self.table[tokens].cumsum(1))
        return super().cached(tokens, cache)


def test_a_trace_of_its_own_is_used():
    """Its sites, and the line that reported."""
    found = kvfuzz.locate(Traces, case(3, 1, 2, vocabulary=11))
    assert (found.first.step, found.first.position, str(found.first.site)) == (1, 3, "0.kv")
    assert found.first.source.text == 'self.note("kv", 0, sums)'


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_adapter_of_kvfuzz_that_computes_by_itself_is_located(monkeypatch, dtype):
    """Its own file is a model's, wherever it lies; another file of that folder is none."""
    folder = Path(models.__file__).parent
    monkeypatch.setattr(source_lines, "_KVFUZZ", folder)
    monkeypatch.setattr(source_lines, "_SKIPPED", (*source_lines._SKIPPED, str(folder)))
    program = case(3, 1, 2, vocabulary=11)
    factory = replace(as_factory(models.ForgetsOnDecode), dtypes=(dtype,))
    first = kvfuzz.locate(factory, replace(program, dtype=dtype)).first
    assert first.source.file.endswith("tests/subjects/models.py")
    code = source_lines.ModelCode(models.ForgetsOnDecode(), None)
    assert [code._rank(module.__file__) for module in (models, decoders)] == [2, 0]
    outside = source_lines.ModelCode(Numpy(), None)
    assert outside._rank(models.__file__) == 0


class Numpy(models.Summing):
    """Computes with numpy, where nothing can be seen."""

    def uncached(self, tokens):
        return torch.from_numpy(self.table.numpy()[tokens.numpy()].cumsum(1) @ self.out.numpy())

    def new_cache(self, batch):
        return torch.zeros(batch, 8).numpy()

    def cached(self, tokens, cache):
        cache = 0 * cache if tokens.shape[1] == 1 else cache
        sums = cache[:, None] + self.table.numpy()[tokens.numpy()].cumsum(1)
        return torch.from_numpy(sums @ self.out.numpy()), sums[:, -1]


def test_of_what_cannot_be_seen_step_and_position_are_told():
    """The logits, no line, no cause, and a note that says why."""
    found = kvfuzz.locate(Numpy, case(3, 1, 2, vocabulary=11))
    first = found.first
    assert (first.step, first.position, str(first.site)) == (1, 3, "logits")
    assert (first.source, first.module, found.cause) == (None, None, None)
    assert "its states cannot be seen" in found.notes[0]


class GlobalCache(Decoder):
    """Its cache is a global, and what it carries is nothing."""

    net = faulty_decoders.PositionTooFar
    held = None

    def new_cache(self, batch):
        GlobalCache.held = decoders.Grown()

    def cached(self, tokens, cache):
        return self.model(tokens, GlobalCache.held), None


def test_a_cache_in_global_state_is_located():
    """Each run begins with a new one."""
    first = kvfuzz.locate(GlobalCache, PLAIN).first
    assert first.source.line == line_of(faulty_decoders.PositionTooFar)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_subject_without_float64_is_located_in_its_own_dtype(dtype):
    """Where rounding is large."""
    factory = as_factory(decoder(net=faulty_decoders.PositionTooFar))
    only = replace(factory, build=lambda *a: factory.build(a[0], dtype, a[2]), dtypes=(dtype,))
    first = kvfuzz.locate(only, replace(PLAIN, dtype=dtype)).first
    assert first.source.line == line_of(faulty_decoders.PositionTooFar)


def test_a_cache_that_rounds_on_purpose_is_no_divergence():
    """What its dtype rounds is allowed inside too; a wrong slot is not."""
    program = case(3, 1, 2, vocabulary=numerics.VOCAB)
    clean = kvfuzz.locate(numerics.DeclaresWhatItRounds, program)
    assert (clean.first, clean.latent) == (None, ())
    wrong = kvfuzz.locate(numerics.SlotOffByOne, program)
    assert (wrong.first.step, wrong.cause) == (1, "append slot")
    undeclared = kvfuzz.locate(numerics.RoundsTo, program)
    assert (undeclared.first.step, undeclared.cause) == (0, "dtype")


def test_a_case_in_float32_is_located_in_float64():
    """A fault below the rounding of float32 is seen."""

    class Tiny(decoders.Net):
        def read(self, x, start):
            logits = super().read(x, start)
            return logits * (1 + 1e-8) if start else logits

    assert str(kvfuzz.locate(decoder(net=Tiny), PLAIN).first.site) == "logits"


# What locating must not do.


def test_nothing_is_changed_by_locating():
    """Weights, attributes, the generator and the hooks are as they were."""
    subject = decoder(mixer=faulty_decoders.SplitsInAnotherOrder)()
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    objects = {name: id(value) for name, value in subject.model.named_parameters()}
    rng, attributes = torch.get_rng_state(), set(vars(subject))
    hooks = len(torch_modules._global_forward_hooks), len(torch_modules._global_forward_pre_hooks)
    assert kvfuzz.locate(subject, PLAIN).first is not None
    after = subject.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert {value.dtype for value in after.values()} == {torch.float32}
    assert {name: id(value) for name, value in subject.model.named_parameters()} == objects
    assert torch.equal(torch.get_rng_state(), rng)
    assert set(vars(subject)) == attributes
    assert hooks == (
        len(torch_modules._global_forward_hooks),
        len(torch_modules._global_forward_pre_hooks),
    )


class Watches(Decoder):
    """Answers otherwise while its modules are watched."""

    def cached(self, tokens, cache):
        logits, cache = super().cached(tokens, cache)
        return logits + len(torch_modules._global_forward_hooks), cache


def test_a_model_that_is_changed_by_recording_has_a_note():
    """What is said of it may be wrong."""
    found = kvfuzz.locate(Watches, PLAIN)
    assert any("when it was recorded" in note for note in found.notes)
    assert not kvfuzz.locate(Decoder, PLAIN).notes


def test_a_case_that_does_not_fit_is_refused():
    """As `check` refuses it."""
    with pytest.raises(InvalidCase, match="out of range"):
        kvfuzz.locate(Decoder, replace(PLAIN, tokens=((99,) * 6,)))


# Paths that raise.


class Raises(decoders.Grouped):
    """The second layer refuses the third call."""

    def stored(self, cache, key, value, old):
        if self.layer == 1 and old == 4:
            raise RuntimeError("no")
        return super().stored(cache, key, value, old)


class WrongThenRaises(Raises):
    """And before that the first one is wrong."""

    def stored(self, cache, key, value, old):
        if self.layer == 0 and old == 4:
            value = 1.5 * value
        return super().stored(cache, key, value, old)


class CountsThenRaises(Raises):
    """What it counts is right once the length of the cache is added."""

    def stored(self, cache, key, value, old):
        torch.arange(key.shape[2]) + old
        return super().stored(cache, key, value, old)


def test_what_differs_as_it_should_is_not_blamed_for_an_error():
    """The positions of a chunk start at zero there, and nothing wrong was made from them."""
    found = kvfuzz.locate(decoder(mixer=CountsThenRaises), PLAIN)
    assert found.first is None
    assert found.notes[0].endswith(': raise RuntimeError("no")')


def test_a_path_that_raises_is_located_before_that():
    """The line that raised, and no state; or the state that was wrong already."""
    found = kvfuzz.locate(decoder(mixer=Raises), PLAIN)
    assert found.first is None
    assert "step 3 (extend) raises at tests/test_locate_subjects.py:" in found.notes[0]
    assert found.notes[0].endswith(': raise RuntimeError("no")')
    hunt = kvfuzz.fuzz(decoder(mixer=Raises), seed=0)
    assert f"  note: {hunt.explanation.location.notes[0]}" in hunt_text(hunt)
    assert "raises at tests/test_locate_subjects.py:" in hunt_text(hunt)
    found = kvfuzz.locate(decoder(mixer=WrongThenRaises), PLAIN)
    assert found.first.source.text == "value = 1.5 * value"
    assert (found.first.step, found.cause) == (2, "scale")


# No false site.


CLEAN = {
    "grouped": Decoder,
    "fused": decoder(mixer=decoders.Fused),
    "kernel": decoder(mixer=decoders.Kernel),
    "recurrent": RecurrentDecoder,
    "allocated": AllocatedDecoder,
    "padded": PaddedDecoder,
    "recomputes": Recomputes,
    "in half": numerics.InHalf,
}


@pytest.mark.parametrize("name", [*CLEAN, "zoo"])
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_nothing_is_named_in_a_clean_decoder(name, data):
    """Padding, crops, reordered rows, forks: no state differs, not even a latent one."""
    factory = load(name) if name not in CLEAN else as_factory(CLEAN[name])
    found = kvfuzz.locate(factory, data.draw(cases(space_of(factory))))
    assert (found.first, found.latent) == (None, ())


@pytest.mark.parametrize("model", ["llama", "gpt2", "gemma2", "lfm2", "bloom"])
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_nothing_is_named_in_a_clean_model(model, data):
    """Nor in a model of the library."""
    pytest.importorskip("transformers")
    factory = load(f"transformers:{model}")
    found = kvfuzz.locate(factory, data.draw(cases(space_of(factory))))
    assert (found.first, found.latent) == (None, ())
