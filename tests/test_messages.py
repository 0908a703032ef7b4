"""The text of errors: what was seen, what was expected, where, by how much, what to look at."""

import re

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Difference, Verdict
from kvfuzz.localize.paths import compare_paths
from kvfuzz.report.text import divergence_text, hunt_text
from kvfuzz.search.hunt import fuzz
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.protocol import Factory
from mutants.library.mutant_scheme import with_mutant
from mutants.library.registry import find
from tests.subjects import models, raising

NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?"


def pattern(text):
    """`text` as a regular expression, with # for any number."""
    return re.escape(text).replace(r"\#", NUMBER).replace("#", NUMBER)


def test_a_divergence_of_the_zoo_reads_as_the_house_says(tmp_path):
    """Every line, from the place to the replay."""
    hunt = fuzz("mutant:position.stops_after_the_prompt", seed=1, folder=tmp_path)
    lines = hunt_text(hunt).splitlines()
    expected = [
        "DIVERGED at step 3 of 3 (decode), row 0, position 2 (the third token)",
        "  cached   logit[#] =  #",
        "  uncached logit[#] =  #",
        "  difference # is # x the allowed # (float32, from the noise of the uncached path)",
        "  impact: the likeliest token changes at # of # positions, KL divergence up to # nats, "
        "relative L2 #",
        "  first divergence: position ids of row 0, step 3, position 2, by # where # is allowed",
        '    kvfuzz/subjects/zoo/cached.py:#: note("position", None, x, index if index.dim() == 1 '
        "else index[..., None])",
        "  look first at: the position index of the third token (it is 1, and should be 2)",
        "  evidence: positions differ; keys and values of the new tokens differ; keys and values "
        "of earlier positions agree",
        "  paths: cached in one call agrees with uncached: suspect what the later steps do",
        "  case: seed 0, schedule [1, 1, 1], float32",
        "  model: positions learned, norm layernorm, layers 2, heads 2, kv_heads 2, head_dim 2, "
        "window None, scale 1.0, cache concatenated, mix uniform",
        "  row 0: 0 0 0",
        f"  replay: kvfuzz replay {hunt.path}",
        "  shrunk in # forward passes: no simpler version diverges",
        "  # cases, # positions compared, largest difference # x the allowed, # s, seed 1",
    ]
    for line, wanted in zip(lines, expected, strict=True):
        wanted = wanted.replace("=  #", "= #")
        line = line.replace("=  ", "= ")
        assert re.fullmatch(pattern(wanted), line), f"{line!r} is not {wanted!r}"


def test_the_numbers_are_those_of_the_verdict():
    """Rounded to what a person reads."""
    verdict = Verdict(
        "diverged",
        positions=3,
        excess=35000.0,
        dtype="float32",
        basis="constant",
        first=Difference(1, "decode", 0, 2, 11, 0.8123, 0.4410, 0.3713, 1.06e-5),
    )
    text = divergence_text(Case(((1, 2, 3),), (2, 1)), verdict)
    assert text.splitlines()[:4] == [
        "DIVERGED at step 2 of 2 (decode), row 0, position 2 (the third token)",
        "  cached   logit[11] =  0.8123",
        "  uncached logit[11] =  0.441",
        "  difference 0.3713 is 3.5e+04 x the allowed 1.06e-05 (float32, a constant, scaled to "
        "the largest logit there)",
    ]


def test_an_error_of_one_path_says_which_and_where():
    """The step, the positions and the first line of the error."""
    text = hunt_text(fuzz(raising.RaisesOnChunks, seed=0))
    assert text.splitlines()[:2] == [
        "DIVERGED at step 2 of 2 (extend), positions 1 to 2",
        "  the cached path raised RuntimeError: only one token at a time; the uncached path did "
        "not raise",
    ]
    text = hunt_text(fuzz(raising.UncachedRaises, seed=0))
    assert text.startswith(
        "DIVERGED: the uncached path raised ValueError: three; the cached path did not"
    )


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (models.ForgetsOnDecode, "cached in one call agrees with uncached: suspect what the later"),
        (models.WrongUncached, "the two cached paths agree with each other and the two uncached"),
        (models.WrongInChunks, "the paths disagree (uncached, prefix by prefix = uncached, in"),
    ],
)
def test_which_paths_agree_is_said(subject, sentence):
    """The uncached path can be the wrong one. A fault of the prefill shows in one call as well."""
    case = Case(((1, 2, 3, 4),), (2, 1, 1))
    assert compare_paths(subject(), case).sentence.startswith(sentence)


def test_an_uncached_path_that_is_not_causal_is_said():
    """After an agreement and after a divergence."""

    class Both(models.SeesTheFuture, models.ForgetsOnDecode):
        pass

    assert "judged prefix by prefix (the uncached path is not causal)" in hunt_text(
        fuzz(models.SeesTheFuture, seed=0, examples=20, laws=())
    )
    assert "uncached logits depend on later tokens or on the length" in hunt_text(
        fuzz(Both, seed=0)
    )


def test_the_answer_to_the_source_texts_question():
    """Prefixes of one and two tokens agree, the third differs right at its position ids: look
    at the position index of the third token."""
    factory = with_mutant(as_factory("zoo"), find("position.stops_after_the_prompt"))
    assert isinstance(factory, Factory)
    hunt = fuzz(factory, seed=0)
    assert hunt.failure.verdict.first.position == 2
    assert str(hunt.explanation.location.first.site) == "position"
    assert hunt.explanation.location.advice.startswith("the position index of the third token")
