"""`kvfuzz.locate` on decoders written by hand: the state, the module, the line and the cause."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn.modules import module as torch_modules

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import counterexample
from kvfuzz.case.schedule import Crop, Padded, Reorder
from kvfuzz.errors import InvalidCase
from kvfuzz.report.text import hunt_text
from kvfuzz.search.replay import locate_file, replay
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.loading import as_factory, load
from mutants.library.registry import find, library
from tests.subjects import decoders, models, numerics
from tests.subjects.decoders import (
    AllocatedDecoder,
    Decoder,
    PaddedDecoder,
    RecurrentDecoder,
    decoder,
    line_of,
)
from tests.subjects.recomputing import Recomputes


def case(*schedule, rows=2, given=(), vocabulary=29):
    """Rows of different tokens, fed by `schedule`."""
    sizes = [entry if isinstance(entry, int) else getattr(entry, "size", 0) for entry in schedule]
    table = [
        [(7 * i + 5 * row * (row + 1) + 1) % vocabulary for i in range(sum(sizes))]
        for row in range(rows)
    ]
    return Case(tuple(map(tuple, table)), schedule, given=given)


PLAIN = case(3, 1, 2)
LEFT = case(Padded(4, "left", (1, 2)), 1, 2, given=("mask",))
RIGHT = case(Padded(4, "right", (1, 2)), 1, 2, given=("mask",))


def recurrent(mixer):
    return type(f"{mixer.__name__}Decoder", (RecurrentDecoder,), {"mixer": mixer})


def made(kind, **parts):
    """A decoder of that kind with other parts."""
    return type(f"{next(iter(parts.values())).__name__}{kind.__name__}", (kind,), parts)


class SeesPaddingDecoder(PaddedDecoder):
    net = decoders.SeesPadding


# For each fault: the decoder, the case, the class with the line, and then step, position, site,
# module and cause.
FAULTS = {
    "heads": (
        decoder(mixer=decoders.SharesTheWrongWay), PLAIN, decoders.SharesTheWrongWay,
        1, 0, "0.kv", "layers.0.mixer", "head grouping",
    ),
    "rows": (
        decoder(mixer=decoders.RollsItsRows), PLAIN, decoders.RollsItsRows,
        1, 3, "1.kv", "layers.1.mixer", "batch row",
    ),
    "rows of a layer with a key": (
        decoder(mixer=decoders.RollsItsRows, net=decoders.KeyedNet), PLAIN, decoders.RollsItsRows,
        1, 3, "1.kv", "layers.upper.mixer", "batch row",
    ),
    "fused": (
        decoder(mixer=decoders.SplitsInAnotherOrder), PLAIN, decoders.SplitsInAnotherOrder,
        1, 3, "0.kv", "layers.0.mixer", "projection",
    ),
    "time first": (
        decoder(mixer=decoders.SharpensLater), PLAIN, decoders.SharpensLater,
        1, 3, "1.attention", "layers.1.mixer", "mask alignment",
    ),
    "kernel": (
        decoder(mixer=decoders.KernelWithoutScale), PLAIN, decoders.KernelWithoutScale,
        1, 3, "0.attention", "layers.0.mixer", "mask alignment",
    ),
    "recurrent": (
        recurrent(decoders.ForgetsItsGate), PLAIN, decoders.ForgetsItsGate,
        1, 3, "0.cache", "layers.0.mixer", "recurrent state",
    ),
    "norm": (
        decoder(block=decoders.SkipsItsNorm), PLAIN, decoders.SkipsItsNorm,
        1, 3, "0.mlp", "layers.0.mlp.0", "mlp",
    ),
    "residual": (
        decoder(block=decoders.AddsTwice), PLAIN, decoders.AddsTwice,
        2, 4, "1.residual", "layers.1", "residual",
    ),
    "position": (
        decoder(net=decoders.PositionTooFar), PLAIN, decoders.PositionTooFar,
        1, 3, "position", "<PositionTooFar>", "position index",
    ),
    "mask": (
        decoder(net=decoders.HidesTheFirst), PLAIN, decoders.HidesTheFirst,
        1, 0, "0.attention", "<HidesTheFirst>", "mask alignment",
    ),
    "readout": (
        decoder(net=decoders.ReadsTooLoud), PLAIN, decoders.ReadsTooLoud,
        1, 3, "logits", "<ReadsTooLoud>", "scale",
    ),
    "slot": (
        decoders.WritesEarlyDecoder, PLAIN, decoders.WritesOneTooEarly,
        1, 3, "0.cache", "layers.0.mixer", "append slot",
    ),
    "index": (
        decoders.CopiesDecoder, PLAIN, decoders.CopiesTheWrongIndex,
        2, 4, "0.kv", "layers.0.mixer", "projection",
    ),
    "slot of a stacked cache": (
        decoders.StacksEarlyDecoder, PLAIN, decoders.StacksOneTooEarly,
        1, 3, "0.cache", "layers.0.mixer", "append slot",
    ),
    "layer of a stacked cache": (
        decoders.StacksOnTheNextDecoder, PLAIN, decoders.StacksOnTheNextLayer,
        1, 3, "0.cache", "layers.0.mixer", "append slot",
    ),
    "heads, and a stacked cache": (
        made(decoders.StackedDecoder, mixer=decoders.SharesTheWrongWay), PLAIN,
        decoders.SharesTheWrongWay, 1, 0, "0.kv", "layers.0.mixer", "head grouping",
    ),
    "norm, and a cache in one tensor": (
        made(decoders.InOneTensorDecoder, block=decoders.SkipsItsNorm), PLAIN,
        decoders.SkipsItsNorm, 1, 3, "0.mlp", "layers.0.mlp.0", "mlp",
    ),
    "crop": (
        decoders.CropsKeysAlone, case(3, 1, Crop(2), 2), decoders.CropsKeysAlone,
        2, 0, "0.cache", None, "stale state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_where_it_is(name):
    """The line of the fault, its function and module, and the first state that it makes wrong."""
    subject, program, cls, step, position, site, module, cause = FAULTS[name]
    assert kvfuzz.check(subject(), program).status == "diverged"
    found = kvfuzz.locate(subject, program)
    first = found.first
    assert first.source.file.endswith("tests/subjects/decoders.py")
    assert (first.source.line, first.source.function.split(".")[0]) == (line_of(cls), cls.__name__)
    assert "# fault" in first.source.text
    assert (first.step, first.position, str(first.site)) == (step, position, site)
    assert (first.module, found.cause, found.suspect) == (module, cause, "cached")
    assert first.difference > first.allowed
    assert found.latent == ()


# Where the fault itself computes nothing, the line is the first that it reaches.
REACHED = {
    "layer": (
        decoder(mixer=decoders.WritesToTheNextLayer), PLAIN, decoders.Grouped.shared,
        1, 0, "1.cache", "layer index",
    ),
    "layer beside another": (
        decoder(mixer=decoders.WritesToTheNextLayer, net=decoders.SideBySideNet), PLAIN,
        decoders.Grouped.shared, 1, 0, "1.cache", "layer index",
    ),
    "chunk": (
        recurrent(decoders.StartsAnew), PLAIN, decoders.Recurrence.loop,
        2, 4, "0.cache", "recurrent state",
    ),
    "reorder": (
        decoders.ReordersTwice, case(3, Reorder((1, 2, 0)), 1, rows=3), PaddedDecoder.reorder,
        1, 0, "0.cache", "batch row",
    ),
    "left": (SeesPaddingDecoder, LEFT, decoders.Net.mask, 1, 2, "0.attention", "mask alignment"),
    "right": (SeesPaddingDecoder, RIGHT, decoders.Net.mask, 1, 2, "0.attention", "mask alignment"),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_a_fault_that_computes_nothing_is_found_where_it_shows(name):
    """In the function that it reaches first."""
    subject, program, function, step, position, site, cause = REACHED[name]
    found = kvfuzz.locate(subject, program)
    first = found.first
    assert first.source.function.startswith(function.__qualname__)
    assert (first.step, first.position, str(first.site)) == (step, position, site)
    assert (found.cause, found.suspect) == (cause, "cached")


def test_where_padding_is_seen_the_row_is_one_that_has_some():
    """A row without padding is right."""
    program = case(Padded(4, "left", (0, 2)), 1, 2, given=("mask",))
    assert kvfuzz.locate(SeesPaddingDecoder, program).first.row == 1


def test_the_line_behind_a_helper_has_its_caller():
    """The line of the module's forward that led to it."""
    first = kvfuzz.locate(decoders.WritesEarlyDecoder, PLAIN).first
    assert first.caller.function == "Grouped.forward"
    assert first.caller.text == "key, value = self.stored(cache, key, value, old)"


def test_the_partner_is_the_line_of_the_other_path():
    """Where both paths compute a state on lines of their own."""
    first = kvfuzz.locate(decoder(mixer=decoders.SharpensLater), PLAIN).first
    assert first.partner.text == "return scores.softmax(-1)"
    assert kvfuzz.locate(decoder(net=decoders.PositionTooFar), PLAIN).first.partner is None


def test_the_evidence_tells_what_agrees():
    """Of a fault in attention alone, positions, masks, keys and values are not to blame."""
    told = kvfuzz.locate(decoder(mixer=decoders.SharpensLater), PLAIN).evidence
    assert set(told) >= {
        "masks agree",
        "keys and values of earlier positions agree",
        "keys and values of the new tokens agree",
    }
    assert all(sentence.endswith(" agree") for sentence in told)
    told = kvfuzz.locate(decoder(net=decoders.PositionTooFar), PLAIN).evidence
    assert {"positions differ", "masks agree"} <= set(told)


def test_the_first_divergence_is_on_the_map():
    """With cells that agree before it."""
    found = kvfuzz.locate(decoder(mixer=decoders.RollsItsRows), PLAIN)
    over = {(cell.step, cell.site, cell.position) for cell in found.cells if cell.excess > 1}
    assert (1, "1.kv", 3) in over
    assert not any(step == 0 or site.startswith("0.") for step, site, _ in over)


# Subjects of other kinds.


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
        from contextlib import contextmanager

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

    net = decoders.PositionTooFar
    held = None

    def new_cache(self, batch):
        GlobalCache.held = decoders.Grown()

    def cached(self, tokens, cache):
        return self.model(tokens, GlobalCache.held), None


def test_a_cache_in_global_state_is_located():
    """Each run begins with a new one."""
    first = kvfuzz.locate(GlobalCache, PLAIN).first
    assert first.source.line == line_of(decoders.PositionTooFar)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_subject_without_float64_is_located_in_its_own_dtype(dtype):
    """Where rounding is large."""
    factory = as_factory(decoder(net=decoders.PositionTooFar))
    only = replace(factory, build=lambda *a: factory.build(a[0], dtype, a[2]), dtypes=(dtype,))
    first = kvfuzz.locate(only, replace(PLAIN, dtype=dtype)).first
    assert first.source.line == line_of(decoders.PositionTooFar)


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


# Which path to suspect.


def test_the_uncached_path_is_suspected_where_it_is_not_causal():
    """It is located against the cached one, and said."""
    found = kvfuzz.locate(models.SeesTheFuture, case(3, 1, 2, vocabulary=11))
    assert found.suspect == "uncached"
    assert found.first.source.function == "SeesTheFuture.uncached"
    assert any("only the uncached path disagrees" in note for note in found.notes)


def test_two_against_two_is_unknown():
    """And a note says so."""
    found = kvfuzz.locate(models.WrongUncached, case(3, 1, 2, vocabulary=11))
    assert found.first is not None
    assert found.suspect == "unknown"
    assert any("either side" in note for note in found.notes)


# What locating must not do.


def test_nothing_is_changed_by_locating():
    """Weights, attributes, the generator and the hooks are as they were."""
    subject = decoder(mixer=decoders.SplitsInAnotherOrder)()
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
    """The numbers of a chunk begin at nought in it, and nothing wrong was made from them."""
    found = kvfuzz.locate(decoder(mixer=CountsThenRaises), PLAIN)
    assert found.first is None
    assert found.notes[0].endswith(': raise RuntimeError("no")')


def test_a_path_that_raises_is_located_before_that():
    """The line that raised, and no state; or the state that was wrong already."""
    found = kvfuzz.locate(decoder(mixer=Raises), PLAIN)
    assert found.first is None
    assert "step 3 (extend) raises at tests/test_locate.py:" in found.notes[0]
    assert found.notes[0].endswith(': raise RuntimeError("no")')
    hunt = kvfuzz.fuzz(decoder(mixer=Raises), seed=0)
    assert f"  note: {hunt.explanation.location.notes[0]}" in hunt_text(hunt)
    assert "raises at tests/test_locate.py:" in hunt_text(hunt)
    found = kvfuzz.locate(decoder(mixer=WrongThenRaises), PLAIN)
    assert found.first.source.text == "value = 1.5 * value"
    assert (found.first.step, found.cause) == (2, "scale")


def test_a_case_that_does_not_fit_is_refused():
    """As `check` refuses it."""
    with pytest.raises(InvalidCase, match="out of range"):
        kvfuzz.locate(Decoder, replace(PLAIN, tokens=((99,) * 6,)))


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


def test_what_is_undone_is_latent_and_strict_makes_it_first():
    """The logits agree and a state does not."""
    subject = decoders.Undoes
    assert kvfuzz.check(subject(), PLAIN).status == "agreed"
    found = kvfuzz.locate(subject, PLAIN)
    assert found.first is None
    assert found.located
    assert {(latent.step, latent.site) for latent in found.latent} == {(1, "0.mlp"), (1, "1.mlp")}
    strict = kvfuzz.locate(subject, PLAIN, strict=True)
    assert (strict.first.step, str(strict.first.site)) == (1, "0.mlp")
    assert strict.first.source.text == "return 2 * x if later else x"


# Mutants, and the command line.


LOCATED = [
    fault.id
    for fault in library().values()
    if fault.law == "agreement" and not fault.placebo and not fault.equivalent
]


@pytest.mark.parametrize("mutant", LOCATED[::16])
def test_mutants_are_located_at_their_site(mutant):
    """A sample; `tests/mutants/test_library.py` has the whole library."""
    fault = find(mutant)
    factory = load("zoo")
    faulty = replace(factory, build=lambda *a: fault.into(factory.build(*a), a[1]))
    assert kvfuzz.locate(faulty, fault.witness).first.site == fault.site


SUBJECT = "tests.subjects.decoders:WritesEarlyDecoder"
RIGHT = "tests.subjects.decoders:AllocatedDecoder"
FIRST = {
    "step", "row", "position", "site", "layer", "module", "file", "line", "function",
    "difference", "allowed",
}  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """A counterexample that is small, since nothing has to be hunted for."""
    verdict = kvfuzz.check(decoders.WritesEarlyDecoder(), PLAIN)
    found = counterexample(SUBJECT, PLAIN, verdict, None, "cpu")
    return found.save(tmp_path)


def test_the_command_says_where_and_writes_it(run, saved, tmp_path):
    """Exit code 0; the text has the line, the JSON all that is known, the page the map."""
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    code, text, err = run("locate", saved, "--json", out, "--html", page)
    assert (code, err) == (0, "")
    line = line_of(decoders.WritesOneTooEarly)
    assert f"tests/subjects/decoders.py:{line}" in text
    assert "Look first at" in text or "look first at" in text
    data = json.loads(out.read_text())
    assert set(data) >= {"first", "cause", "nearest", "latent", "suspect"}
    assert set(data["first"]) >= FIRST
    first = data["first"]
    assert (first["step"], first["site"], first["layer"]) == (1, "0.cache", 0)
    assert (first["line"], first["module"]) == (line, "layers.0.mixer")
    assert first["difference"] > first["allowed"]
    assert (data["cause"], data["suspect"], data["latent"]) == ("append slot", "cached", [])
    assert data["nearest"] == []  # kept for one release, always empty
    assert f"decoders.py:{line}" in page.read_text()


def test_the_map_can_be_left_out(run, saved):
    """Fewer lines, and the same first one."""
    _, drawn, _ = run("locate", saved)
    _, bare, _ = run("locate", saved, "--no-map")
    drawn, bare = (
        {line for line in text.splitlines() if "cost" not in line} for text in (drawn, bare)
    )
    assert bare < drawn
    assert any("X first divergence" in line for line in drawn - bare)


def test_a_case_that_agrees_now_has_no_first(run, saved, tmp_path):
    """Exit code 3, and null in the JSON."""
    out = tmp_path / "out.json"
    code, _, _ = run("locate", saved, "--subject", RIGHT, "--json", out)
    assert code == 3
    assert json.loads(out.read_text())["first"] is None


def test_a_latent_state_counts_with_strict_alone(run, tmp_path):
    """Exit code 3 with the state named, and 0 with --strict."""
    name = "tests.subjects.decoders:Undoes"
    verdict = kvfuzz.check(decoders.WritesEarlyDecoder(), PLAIN)
    path = counterexample(name, PLAIN, verdict, None, "cpu").save(tmp_path)
    code, text, _ = run("locate", path, "--no-map")
    assert code == 3
    assert "MLP of layer 1" in text
    code, text, _ = run("locate", path, "--no-map", "--strict")
    assert code == 0
    assert "return 2 * x if later else x" in text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', None])
def test_a_bad_file_is_refused_in_one_line(run, tmp_path, text):
    """Exit code 2, and no traceback."""
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    code, out, err = run("locate", path)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "bad.json" in err


def test_a_counterexample_of_another_law_has_a_note(run, tmp_path):
    """The cached and the uncached path agree: exit code 3."""
    verdict = replace(kvfuzz.check(decoders.WritesEarlyDecoder(), PLAIN), law="causality")
    path = counterexample(RIGHT, PLAIN, verdict, None, "cpu").save(tmp_path)
    code, text, _ = run("locate", path)
    assert code == 3
    assert "it breaks the law causality" in text


def test_a_hunt_locates_unless_told_otherwise(run, tmp_path):
    """`--no-locate` says that it diverged, and no more."""
    arguments = ("fuzz", SUBJECT, "--seed", 0, "--examples", 3)
    code, located, _ = run(*arguments, "--folder", tmp_path)
    assert code == 1
    assert "first divergence: " in located
    code, bare, _ = run(*arguments, "--folder", tmp_path / "other", "--no-locate")
    assert code == 1
    assert "DIVERGED" in bare
    assert "first divergence" not in bare


def test_a_replay_locates_as_the_command_does(saved):
    """In float64, though the counterexample is in float32: the same state, line and allowance."""
    replayed = replay(saved).explanation.location
    _, case, located = locate_file(saved)
    assert case.dtype == "float32"
    assert located.first.allowed < 1e-9
    assert replayed.first == located.first
