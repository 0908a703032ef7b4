"""`kvfuzz.locate` on decoders written by hand: the state, the module, the line, the cause and the
path to suspect."""

from dataclasses import dataclass

import pytest

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop, Padded, Reorder
from tests.locate_cases import LEFT, PLAIN, RIGHT, case
from tests.subjects import decoders, faulty_decoders, models
from tests.subjects.decoders import PaddedDecoder, RecurrentDecoder, decoder
from tests.subjects.faulty_decoders import line_of


def recurrent(mixer):
    return type(f"{mixer.__name__}Decoder", (RecurrentDecoder,), {"mixer": mixer})


def made(kind, **parts):
    """A decoder of that kind with other parts."""
    return type(f"{next(iter(parts.values())).__name__}{kind.__name__}", (kind,), parts)


class SeesPaddingDecoder(PaddedDecoder):
    net = faulty_decoders.SeesPadding


@dataclass(frozen=True)
class Fault:
    """A decoder with a fault, and where `locate` should find it: `wrong` is the class with the line
    marked `# fault`."""

    subject: type
    wrong: type
    step: int
    position: int
    site: str
    module: str | None
    cause: str
    case: Case = PLAIN


FAULTS = {
    "heads": Fault(
        subject=decoder(mixer=faulty_decoders.SharesTheWrongWay),
        wrong=faulty_decoders.SharesTheWrongWay,
        step=1, position=0, site="0.kv", module="layers.0.mixer",
        cause="head grouping",
    ),
    "rows": Fault(
        subject=decoder(mixer=faulty_decoders.RollsItsRows),
        wrong=faulty_decoders.RollsItsRows,
        step=1, position=3, site="1.kv", module="layers.1.mixer",
        cause="batch row",
    ),
    "rows of a layer with a key": Fault(
        subject=decoder(mixer=faulty_decoders.RollsItsRows, net=decoders.KeyedNet),
        wrong=faulty_decoders.RollsItsRows,
        step=1, position=3, site="1.kv", module="layers.upper.mixer",
        cause="batch row",
    ),
    "fused": Fault(
        subject=decoder(mixer=faulty_decoders.SplitsInAnotherOrder),
        wrong=faulty_decoders.SplitsInAnotherOrder,
        step=1, position=3, site="0.kv", module="layers.0.mixer",
        cause="projection",
    ),
    "time first": Fault(
        subject=decoder(mixer=faulty_decoders.SharpensLater),
        wrong=faulty_decoders.SharpensLater,
        step=1, position=3, site="1.attention", module="layers.1.mixer",
        cause="mask alignment",
    ),
    "kernel": Fault(
        subject=decoder(mixer=faulty_decoders.KernelWithoutScale),
        wrong=faulty_decoders.KernelWithoutScale,
        step=1, position=3, site="0.attention", module="layers.0.mixer",
        cause="mask alignment",
    ),
    "recurrent": Fault(
        subject=recurrent(faulty_decoders.ForgetsItsGate),
        wrong=faulty_decoders.ForgetsItsGate,
        step=1, position=3, site="0.cache", module="layers.0.mixer",
        cause="recurrent state",
    ),
    "norm": Fault(
        subject=decoder(block=faulty_decoders.SkipsItsNorm),
        wrong=faulty_decoders.SkipsItsNorm,
        step=1, position=3, site="0.mlp", module="layers.0.mlp.0",
        cause="mlp",
    ),
    "residual": Fault(
        subject=decoder(block=faulty_decoders.AddsTwice),
        wrong=faulty_decoders.AddsTwice,
        step=2, position=4, site="1.residual", module="layers.1",
        cause="residual",
    ),
    "position": Fault(
        subject=decoder(net=faulty_decoders.PositionTooFar),
        wrong=faulty_decoders.PositionTooFar,
        step=1, position=3, site="position", module="<PositionTooFar>",
        cause="position index",
    ),
    "mask": Fault(
        subject=decoder(net=faulty_decoders.HidesTheFirst),
        wrong=faulty_decoders.HidesTheFirst,
        step=1, position=0, site="0.attention", module="<HidesTheFirst>",
        cause="mask alignment",
    ),
    "readout": Fault(
        subject=decoder(net=faulty_decoders.ReadsTooLoud),
        wrong=faulty_decoders.ReadsTooLoud,
        step=1, position=3, site="logits", module="<ReadsTooLoud>",
        cause="scale",
    ),
    "slot": Fault(
        subject=faulty_decoders.WritesEarlyDecoder,
        wrong=faulty_decoders.WritesOneTooEarly,
        step=1, position=3, site="0.cache", module="layers.0.mixer",
        cause="append slot",
    ),
    "index": Fault(
        subject=faulty_decoders.CopiesDecoder,
        wrong=faulty_decoders.CopiesTheWrongIndex,
        step=2, position=4, site="0.kv", module="layers.0.mixer",
        cause="projection",
    ),
    "slot of a stacked cache": Fault(
        subject=faulty_decoders.StacksEarlyDecoder,
        wrong=faulty_decoders.StacksOneTooEarly,
        step=1, position=3, site="0.cache", module="layers.0.mixer",
        cause="append slot",
    ),
    "layer of a stacked cache": Fault(
        subject=faulty_decoders.StacksOnTheNextDecoder,
        wrong=faulty_decoders.StacksOnTheNextLayer,
        step=1, position=3, site="0.cache", module="layers.0.mixer",
        cause="append slot",
    ),
    "heads, and a stacked cache": Fault(
        subject=made(decoders.StackedDecoder, mixer=faulty_decoders.SharesTheWrongWay),
        wrong=faulty_decoders.SharesTheWrongWay,
        step=1, position=0, site="0.kv", module="layers.0.mixer",
        cause="head grouping",
    ),
    "norm, and a cache in one tensor": Fault(
        subject=made(decoders.InOneTensorDecoder, block=faulty_decoders.SkipsItsNorm),
        wrong=faulty_decoders.SkipsItsNorm,
        step=1, position=3, site="0.mlp", module="layers.0.mlp.0",
        cause="mlp",
    ),
    "crop": Fault(
        subject=faulty_decoders.CropsKeysAlone,
        wrong=faulty_decoders.CropsKeysAlone,
        case=case(3, 1, Crop(2), 2),
        step=2, position=0, site="0.cache", module=None,
        cause="stale state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_where_it_is(fault):
    """The line of the fault, its function and module, and the first state that it makes wrong."""
    assert kvfuzz.check(fault.subject(), fault.case).status == "diverged"
    found = kvfuzz.locate(fault.subject, fault.case)
    first = found.first
    assert first.source.file.endswith("tests/subjects/faulty_decoders.py")
    assert first.source.line == line_of(fault.wrong)
    assert first.source.function.split(".")[0] == fault.wrong.__name__
    assert "# fault" in first.source.text
    assert (first.step, first.position, str(first.site)) == (fault.step, fault.position, fault.site)
    assert (first.module, found.cause) == (fault.module, fault.cause)
    assert found.suspect == "cached"
    assert first.difference > first.allowed
    assert found.latent == ()


@dataclass(frozen=True)
class SilentFault:
    """A decoder with a fault that computes nothing itself, and the `function` with the first line
    that it reaches."""

    subject: type
    function: object
    step: int
    position: int
    site: str
    cause: str
    case: Case = PLAIN


SILENT_FAULTS = {
    "layer": SilentFault(
        subject=decoder(mixer=faulty_decoders.WritesToTheNextLayer),
        function=decoders.Grouped.shared,
        step=1, position=0, site="1.cache",
        cause="layer index",
    ),
    "layer next to another": SilentFault(
        subject=decoder(mixer=faulty_decoders.WritesToTheNextLayer, net=decoders.SideBySideNet),
        function=decoders.Grouped.shared,
        step=1, position=0, site="1.cache",
        cause="layer index",
    ),
    "chunk": SilentFault(
        subject=recurrent(faulty_decoders.StartsAnew),
        function=decoders.Recurrence.loop,
        step=2, position=4, site="0.cache",
        cause="recurrent state",
    ),
    "reorder": SilentFault(
        subject=faulty_decoders.ReordersTwice,
        function=PaddedDecoder.reorder,
        case=case(3, Reorder((1, 2, 0)), 1, rows=3),
        step=1, position=0, site="0.cache",
        cause="batch row",
    ),
    "left": SilentFault(
        subject=SeesPaddingDecoder,
        function=decoders.Net.mask,
        case=LEFT,
        step=1, position=2, site="0.attention",
        cause="mask alignment",
    ),
    "right": SilentFault(
        subject=SeesPaddingDecoder,
        function=decoders.Net.mask,
        case=RIGHT,
        step=1, position=2, site="0.attention",
        cause="mask alignment",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", SILENT_FAULTS.values(), ids=SILENT_FAULTS)
def test_a_fault_that_computes_nothing_is_found_where_it_shows(fault):
    """In the function that it reaches first."""
    found = kvfuzz.locate(fault.subject, fault.case)
    first = found.first
    assert first.source.function.startswith(fault.function.__qualname__)
    assert (first.step, first.position, str(first.site)) == (fault.step, fault.position, fault.site)
    assert (found.cause, found.suspect) == (fault.cause, "cached")


def test_where_padding_is_seen_the_row_is_one_that_has_some():
    """A row without padding is right."""
    program = case(Padded(4, "left", (0, 2)), 1, 2, given=("mask",))
    assert kvfuzz.locate(SeesPaddingDecoder, program).first.row == 1


def test_the_line_behind_a_helper_has_its_caller():
    """The line of the module's forward that led to it."""
    first = kvfuzz.locate(faulty_decoders.WritesEarlyDecoder, PLAIN).first
    assert first.caller.function == "Grouped.forward"
    assert first.caller.text == "key, value = self.stored(cache, key, value, old)"


def test_the_partner_is_the_line_of_the_other_path():
    """Where both paths compute a state on lines of their own."""
    first = kvfuzz.locate(decoder(mixer=faulty_decoders.SharpensLater), PLAIN).first
    assert first.partner.text == "return scores.softmax(-1)"
    assert kvfuzz.locate(decoder(net=faulty_decoders.PositionTooFar), PLAIN).first.partner is None


def test_the_evidence_tells_what_agrees():
    """A fault inside attention leaves positions, masks, keys and values right."""
    evidence = kvfuzz.locate(decoder(mixer=faulty_decoders.SharpensLater), PLAIN).evidence
    assert set(evidence) >= {
        "masks agree",
        "keys and values of earlier positions agree",
        "keys and values of the new tokens agree",
    }
    assert all(sentence.endswith(" agree") for sentence in evidence)
    evidence = kvfuzz.locate(decoder(net=faulty_decoders.PositionTooFar), PLAIN).evidence
    assert {"positions differ", "masks agree"} <= set(evidence)


def test_the_first_divergence_is_on_the_map():
    """With cells that agree before it."""
    found = kvfuzz.locate(decoder(mixer=faulty_decoders.RollsItsRows), PLAIN)
    over = {(cell.step, cell.site, cell.position) for cell in found.cells if cell.excess > 1}
    assert (1, "1.kv", 3) in over
    assert not any(step == 0 or site.startswith("0.") for step, site, _ in over)


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


def test_what_is_undone_is_latent_and_strict_makes_it_first():
    """The logits agree and a state does not."""
    subject = faulty_decoders.Undoes
    assert kvfuzz.check(subject(), PLAIN).status == "agreed"
    found = kvfuzz.locate(subject, PLAIN)
    assert found.first is None
    assert found.located
    assert {(latent.step, latent.site) for latent in found.latent} == {(1, "0.mlp"), (1, "1.mlp")}
    strict = kvfuzz.locate(subject, PLAIN, strict=True)
    assert (strict.first.step, str(strict.first.site)) == (1, "0.mlp")
    assert strict.first.source.text == "return 2 * x if later else x"
