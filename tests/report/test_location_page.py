"""The page of a location: it tells all that is known, to everyone, and needs nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop
from kvfuzz.localize.location import Divergence, Latent, Line, Location, SiteDifference
from kvfuzz.report.html import location_page
from kvfuzz.report.map import LEVELS, times
from kvfuzz.report.words import steps_in_words
from kvfuzz.subjects.trace import Site
from tests.pages import HOSTILE, Page, loads

CASE = Case(((11, 12, 13, 14),) * 2, (2, 1, Crop(1), 1), seed=5, config={"window": 4})
FIRST = Divergence(
    step=1,
    row=1,
    position=2,
    site=Site("attention", 0),
    difference=0.5,
    allowed=0.01,
    source=Line("model/attention.py", 92, "weights = softmax(scores + mask)", "attend"),
    channel=17,
    module="layers.0.attention",
    operation="softmax",
    partner=Line("model/attention.py", 71, "weights = softmax(scores)", "attend_all"),
)
FULL = Location(
    first=FIRST,
    cause="mask",
    advice="the mask of layer 1",
    evidence=("the positions agree", "the mask differs"),
    suspect="cached",
    latent=(Latent(2, "1.cache", 350.0, "the slots are masked"),),
    cells=(
        SiteDifference(0, "0.attention", 0, 0.2),
        SiteDifference(0, "0.attention", 1, 0.1),
        SiteDifference(1, "0.attention", 2, 50.0),
        SiteDifference(2, "0.cache", 1, math.inf),
    ),
    notes=("the fused kernel shows no scores",),
    cost=3.2,
)
LOCATIONS = {
    "full": FULL,
    "no line": replace(FULL, first=replace(FIRST, source=None, partner=None, channel=-1)),
    "missing": replace(
        FULL, first=replace(FIRST, difference=math.inf, allowed=0.0, missing="holds 2 of 3")
    ),
    "latent": Location(None, latent=FULL.latent, cells=FULL.cells[:2]),
    "nothing": Location(None),
}


def page(location, replay="kvfuzz replay x.json"):
    return location_page(location, CASE, "models:Decoder", replay)


@pytest.mark.parametrize("name", LOCATIONS)
def test_every_page_is_well_formed_and_alone(name):
    """Every tag is closed, nothing is loaded, and the browser may load nothing."""
    text = page(LOCATIONS[name])
    assert Page(text).faults == []
    assert loads(text) == []
    assert "default-src 'none'" in text
    assert "http:" not in text
    assert "https:" not in text
    assert text == page(LOCATIONS[name])


def test_the_page_shows_all_that_is_known():
    """What differs, where, what to look at first, why, and the command that replays it."""
    text = Page(page(FULL)).text
    for words in (
        "The paths first differ at the attention of layer 1.",
        "step 2 of 4 (decode), row 1, position 2 (the third token), channel 17",
        "model/attention.py:92",
        "weights = softmax(scores + mask)",
        "attend",
        "model/attention.py:71",
        "weights = softmax(scores)",
        "layers.0.attention",
        "softmax",
        f"0.5, which is {times(50.0)} the allowed 0.01",
        "Look first at the mask of layer 1",
        "cause mask",
        "suspect the cached path",
        "the positions agree",
        "cache of layer 2",
        f"{times(350.0)} the allowed",
        "the slots are masked",
        "the fused kernel shows no scores",
        "3.2 times the two plain runs",
        "models:Decoder",
        "[2, 1, crop 1, 1]",
        "prefill 2, decode 1, crop 1, decode 1",
        "11 12",
        "seed 5, float32, window 4",
        "kvfuzz replay x.json",
    ):
        assert words in text


def test_the_map_marks_the_first_divergence():
    """Every place is there with its value, and one is marked."""
    found = Page(page(FULL))
    assert len(found.cells) == len(FULL.cells)
    (first,) = (cell for cell in found.cells if "first" in (cell["class"] or "").split())
    assert f"{times(50.0)} the allowed" in (first["title"] or "")


def test_a_state_without_a_place_has_none_printed():
    """A missing row or position is -1 in the data, and not shown."""
    first = replace(FIRST, row=-1, position=-1, channel=-1)
    text = Page(page(replace(FULL, first=first, cells=()))).text
    assert "step 2 of 4 (decode)" in text
    assert "-1" not in text.replace("x-1", "")
    assert "row -1" not in text


def test_missing_positions_are_put_in_words():
    """No infinity is called a difference."""
    text = Page(page(LOCATIONS["missing"])).text
    assert "it holds 2 of 3" in text
    assert f"{times(math.inf)} the allowed" not in text


def test_what_was_not_found_is_not_claimed():
    """Latent states are no divergence, and nothing seen is no agreement."""
    assert "The logits agree, although a state differs." in Page(page(LOCATIONS["latent"])).text
    text = Page(page(LOCATIONS["nothing"], replay=None)).text
    assert "No state could be compared." in text
    assert "suspect" not in text
    assert "replay" not in text
    agrees = Location(None, cells=FULL.cells[:2])
    assert "No state differs by more than is allowed." in Page(page(agrees)).text


def test_what_comes_from_data_is_text():
    """Markup in a line of source, a name, a note or a setting comes out as text."""
    line = Line(HOSTILE, 1, HOSTILE, HOSTILE)
    first = replace(FIRST, source=line, partner=line, module=HOSTILE, operation=HOSTILE)
    location = replace(
        FULL,
        first=replace(first, missing=HOSTILE),
        cause=HOSTILE,
        advice=HOSTILE,
        evidence=(HOSTILE,),
        latent=(Latent(0, "logits", 2.0, HOSTILE),),
        notes=(HOSTILE,),
    )
    case = replace(CASE, config={HOSTILE: HOSTILE})
    found = Page(location_page(location, case, HOSTILE, HOSTILE))
    assert found.faults == []
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert found.text.count(HOSTILE) >= 18
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


@pytest.mark.parametrize("name", LOCATIONS)
def test_the_page_can_be_read_without_a_mouse_or_eyes(name):
    """What scrolls can be reached by keyboard and has a name; headings of tables say of what."""
    found = Page(page(LOCATIONS[name]))
    assert found.tags[0][0] == "html"
    assert found.tags[0][1]["lang"] == "en"
    assert [tag for tag, _ in found.tags].count("h1") == 1
    for _, attributes in found.classed("scroll"):
        assert attributes["tabindex"] == "0"
        assert attributes["role"] == "region"
        assert attributes["aria-label"]
    assert all("scope" in attributes for tag, attributes in found.tags if tag == "th")
    assert all("aria-label" in attributes for tag, attributes in found.tags if tag == "meter")


def contrast(one, other):
    """The contrast of two colours `#rrggbb`, from 1 to 21, as the WCAG defines it."""

    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_light_and_dark():
    """Text on paper, and the number in a cell of each level, have the contrast of WCAG AA; and a
    larger difference stands out more from the paper."""
    css = (files("kvfuzz.report") / "base.css").read_text()
    themes = re.findall(r":root \{(.*?)\n *\}", css, re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--(\w+(?:-\w+)?): (#\w{6})", theme))
        for word in ("ink", "soft", "link", "good", "bad", "doubt"):
            assert contrast(colours[word], colours["paper"]) >= 4.5
            assert contrast(colours[word], colours["panel"]) >= 4.5
        levels = range(len(LEVELS))
        assert all(contrast(colours[f"level{i}"], colours[f"ink{i}"]) >= 4.5 for i in levels)
        against = [contrast(colours[f"level{i}"], colours["paper"]) for i in levels]
        assert against == sorted(against)


def test_equal_steps_are_told_once():
    """Many decode steps take a few words."""
    assert steps_in_words(Case((tuple(range(9)),), (3, 1, 1, 4))) == (
        "prefill 3, 2 x decode 1, extend 4"
    )
