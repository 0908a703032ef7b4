"""The states that the built-in decoder reports: the first that differs, and their map."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Tree
from kvfuzz.localize.causes import advice_for, ordinal
from kvfuzz.localize.locate import locate
from kvfuzz.localize.traced_states import compare_sites, difference_map, first_state
from kvfuzz.search.strategies import cases, space_of
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.loading import load
from kvfuzz.subjects.trace import KINDS, Site
from kvfuzz.subjects.zoo.config import DecoderConfig
from kvfuzz.subjects.zoo.decoder import Decoder
from tests.subjects import models

CASE = Case(((1, 2, 3, 4), (9, 8, 7, 6)), (2, 1, 1), dtype="float64")
STAGES = {
    "attention_norm": "0.norm",
    "attend": "0.attention",
    "attention_residual": "0.residual",
    "mlp_norm": "0.mlp_norm",
    "mlp": "0.mlp",
    "mlp_residual": "0.mlp_residual",
    "final_norm": "final_norm",
    "readout": "logits",
    "embed": "position",
}


def bumped(real):
    """The last feature of the last row is too large by a little."""

    def stage(*args):
        value = real(*args).clone()
        value[-1, -1, -1] += 1e-3
        return value

    return stage


@pytest.mark.parametrize(("stage", "site"), STAGES.items())
def test_a_fault_in_a_stage_is_found_at_its_site(stage, site):
    """Each stage of the cached path has a site of its own, with its row and its line."""
    subject = Faulty(Decoder(dtype="float64"), [f"kvfuzz.subjects.zoo.cached:{stage}"], bumped)
    found = first_state(subject, CASE)
    assert str(found.site) == site
    assert (found.step, found.row, found.position) == (0, 1, 1)
    assert found.source.file == "kvfuzz/subjects/zoo/cached.py"


def test_an_earlier_step_comes_before_an_earlier_site():
    """What goes wrong in the second step is blamed there, though the logits differ too."""

    def late(real):
        return lambda config, cache, tokens: real(config, cache, tokens) + (cache.length >= 2)

    found = first_state(
        Faulty(Decoder(dtype="float64"), ["kvfuzz.subjects.zoo.cached:position_index"], late), CASE
    )
    assert (found.step, found.position, str(found.site)) == (1, 2, "position")
    assert advice_for(found.site, found.row, found.position) == (
        "the position index of the third token"
    )


def test_missing_entries_of_a_cache_are_named():
    """A cache that holds too few differs even where what it holds is right."""

    def drops(real):
        return lambda cache, layer, k, v: real(cache, layer, k[:, :, :-1], v[:, :, :-1])

    found = first_state(
        Faulty(Decoder(dtype="float64"), ["kvfuzz.subjects.zoo.cached:store"], drops), CASE
    )
    assert str(found.site) == "0.cache"
    assert found.missing == "holds 1 of the 2 positions due"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_clean_decoder_differs_nowhere(data):
    """No site is named where there is no fault, in float32 as in float64."""
    factory = load("zoo")
    case = data.draw(cases(space_of(factory)))
    assert first_state(factory.subject(case), case) is None


@pytest.mark.parametrize("kept", [-1, 0, 1])
@pytest.mark.parametrize("cache", ["concatenated", "ring"])
def test_candidates_that_no_row_keeps_are_no_missing_positions(cache, kept):
    """Neither in the call that has them nor in the next; a ring refuses them, and has no states."""
    tree = Tree((-1, 0, -1), (kept,))
    case = Case(((0, 1, 2, 3, 4),), (1, tree, 1), dtype="float64")
    decoder = Decoder(DecoderConfig(cache=cache), dtype="float64")
    steps = {site.step.index for site in compare_sites(decoder, case)}
    assert steps == ({0, 1, 2} if cache == "concatenated" else {0})
    assert first_state(decoder, case) is None


def test_a_subject_without_a_trace_has_no_sites():
    """Nothing is guessed about an opaque subject."""
    assert first_state(models.ForgetsOnDecode(), replace(CASE, dtype="float32")) is None


def test_a_fault_below_the_rounding_of_float32_is_located_in_float64():
    """A subject that offers float64 is located there."""

    def tiny(real):
        return lambda config, w, tokens, index: real(config, w, tokens, index) * (1 + 1e-8)

    from kvfuzz.subjects.protocol import Factory

    clean = load("zoo")
    factory = Factory(
        "tiny",
        lambda *a: Faulty(clean.build(*a), ["kvfuzz.subjects.zoo.cached:embed"], tiny),
        clean.dtypes,
        clean.choices,
    )
    case = replace(CASE, dtype="float32")
    assert first_state(factory.subject(case), case) is None
    assert str(locate(factory, case).first.site) == "position"


def test_the_map_has_a_cell_for_every_site_and_position():
    """The new positions of each step at each site; at the cache, all positions so far."""
    cells = difference_map(compare_sites(Decoder(dtype="float64"), CASE))
    one_position = 1 + 2 * 7 + 2  # position; 7 sites in each of 2 layers; final_norm, logits
    assert len(cells) == 4 * one_position + 2 * (2 + 3 + 4)
    assert max(cell.excess for cell in cells) <= 1


def test_the_states_of_a_step_that_raises_are_compared_up_to_there():
    """A cached path that dies on the way still shows where it went wrong first."""

    def wrong_then_dead(norm, readout):
        def dead(*_):
            raise RuntimeError("dead")

        return (lambda *a: norm(*a) * 2), dead

    targets = ["kvfuzz.subjects.zoo.cached:final_norm", "kvfuzz.subjects.zoo.cached:readout"]
    found = first_state(Faulty(Decoder(dtype="float64"), targets, wrong_then_dead), CASE)
    assert str(found.site) == "final_norm"


def test_tracing_ends_with_its_context():
    """A run after a trace reports to nobody."""
    decoder, seen = Decoder(), []
    with decoder.trace(lambda kind, layer, *states: seen.append(kind)):
        decoder.uncached(torch.tensor([[1]]))
    count = len(seen)
    decoder.uncached(torch.tensor([[1]]))
    assert len(seen) == count > 0


def test_sites_sort_into_the_source_texts_order():
    """Position ids; of each layer the normalised hidden state, K/V, cache, attention and residual,
    then the MLP's; final normalisation; logits."""
    kinds_in_layer = KINDS[1:-2]
    expected = [
        "position",
        *(f"0.{kind}" for kind in kinds_in_layer),
        *(f"1.{kind}" for kind in kinds_in_layer),
        "final_norm",
        "logits",
    ]
    shuffled = sorted(expected, key=lambda text: text[::-1])
    assert [str(s) for s in sorted(map(Site.parse, shuffled), key=lambda s: s.order)] == expected


def test_layers_count_from_zero_in_json_and_from_one_in_prose():
    """One site, two ways to say it."""
    assert str(Site("cache", 0)) == "0.cache"
    assert Site("cache", 0).prose == "cache of layer 1"


@pytest.mark.parametrize(("kind", "layer"), [("norm", None), ("logits", 0), ("nosuch", None)])
def test_there_is_no_site_that_is_not_in_the_list(kind, layer):
    """A misspelt site of a mutant fails when it is made."""
    with pytest.raises(ValueError, match="there is no site"):
        Site(kind, layer)


@pytest.mark.parametrize(
    ("position", "word"),
    [(0, "first"), (2, "third"), (9, "tenth"), (10, "11th"), (20, "21st"), (111, "112th")],
)
def test_ordinals(position, word):
    """Position 2 is the third token."""
    assert ordinal(position) == word
