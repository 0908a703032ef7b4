"""The line behind verdicts that do not compare the two paths: precision, repeatability, latent."""

from dataclasses import replace

import torch
from torch import nn

import kvfuzz
from kvfuzz.case.counterexample import make_counterexample
from kvfuzz.case.verdict import Verdict
from kvfuzz.localize.other_laws import locate_cast, locate_repetition
from kvfuzz.search.explain import explain
from kvfuzz.search.replay import locate_file
from kvfuzz.subjects.loading import as_factory
from tests.locate_cases import case
from tests.subjects import operated
from tests.subjects.faulty_decoders import line_of
from tests.subjects.operated import VOCAB

PROGRAM = replace(case(3, 1, 2, vocabulary=VOCAB), dtype="float32")


class RoundsWhatItHolds(operated.Joining):
    def forward(self, x, held, begin):
        key = held[0]
        if begin:
            key = key.bfloat16().to(key.dtype)  # fault
        return super().forward(x, (key, held[1]), begin)


class RoundsDecoder(operated.CountedDecoder):
    mixer = RoundsWhatItHolds


class DropsOut(operated.Joining):
    def forward(self, x, held, begin):
        if begin:
            x = nn.functional.dropout(x, 0.5)  # fault
        return super().forward(x, held, begin)


class DropsOutDecoder(operated.CountedDecoder):
    mixer = DropsOut


class Remembers(operated.Joining):
    """Adds up the tokens of all calls."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(1)

    def forward(self, x, held, begin):
        self.seen += x.abs().sum()
        x = x + self.seen  # fault
        return super().forward(x, held, begin)


class RemembersDecoder(operated.CountedDecoder):
    mixer = Remembers


def test_a_cast_is_named_by_its_line():
    """With both dtypes, in the layer that casts."""
    found = locate_cast(as_factory(RoundsDecoder), PROGRAM)
    assert found.first.source.line == line_of(RoundsWhatItHolds)
    assert (found.cause, found.first.step) == ("dtype", 1)
    assert "it rounds float32 to bfloat16" in found.advice
    assert locate_cast(as_factory(operated.CountedDecoder), PROGRAM) is None


def test_what_changes_from_run_to_run_is_named():
    """What is random, and what an earlier run has left."""
    found = locate_repetition(as_factory(DropsOutDecoder), PROGRAM)
    assert found.first.source.line == line_of(DropsOut)
    assert "drawn at random" in found.advice
    found = locate_repetition(as_factory(RemembersDecoder), PROGRAM)
    assert found.first.source.function == "Remembers.forward"
    assert found.cause == "not repeatable"
    assert locate_repetition(as_factory(operated.CountedDecoder), PROGRAM) is None


def test_an_explanation_has_the_line_of_its_law():
    """Of a verdict on precision and one on repeatability; without locating it has none."""
    lost = Verdict("diverged", excess=torch.inf, precision="the cached path rounds")
    again = Verdict("diverged", law="repeatability", finding="the cached path, run again")
    for subject, verdict, wrong in (
        (RoundsDecoder, lost, RoundsWhatItHolds),
        (DropsOutDecoder, again, DropsOut),
    ):
        factory = as_factory(subject)
        found = explain(factory, PROGRAM, verdict).location
        assert found.first.source.function == f"{wrong.__name__}.forward"
        assert explain(factory, PROGRAM, verdict, locating=False).location is None


def test_the_command_names_it_too(tmp_path):
    """From a counterexample file."""
    verdict = Verdict("diverged", excess=torch.inf, precision="the cached path rounds")
    name = "tests.test_locate_laws:RoundsDecoder"
    path = make_counterexample(name, PROGRAM, verdict, None, "cpu").save(tmp_path)
    _, _, found = locate_file(path)
    assert found.first.source.line == line_of(RoundsWhatItHolds)


def test_a_hunt_that_finds_no_repeatability_names_the_line():
    """Whatever law finds it."""
    hunt = kvfuzz.fuzz(DropsOutDecoder, seed=0, examples=20)
    assert hunt.explanation.location.first.source.file.endswith(("operated.py", "locate_laws.py"))
