"""The map in a terminal: to be read at any width, with and without colour."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import Crop
from kvfuzz.localize.location import SiteDifference
from kvfuzz.report.terminal import terminal_map
from kvfuzz.subjects.trace import IN_LAYER

CASE = Case(((1, 2, 3, 4),), (2, 1, Crop(1), 1))
LARGE = Case((tuple(range(100)),), (96, 1, 1, 1, 1))


def cells_of(case, layers, different):
    """Agreeing cells of all sites, but for the excesses of `different` by place."""
    cells = []
    for step in case.steps():
        start, stop = len(step.before[0]), len(step.after[0])
        for site in (f"{layer}.{kind}" for layer in range(layers) for kind in IN_LAYER):
            in_cache = site.endswith(".cache")
            for position in range(0 if in_cache else start, stop):
                excess = different.get((step.index, site, position), 0.1)
                cells.append(SiteDifference(step.index, site, position, excess))
    return cells


def printed(cells, case, first=None, width=80, color=None):
    """What a terminal of that width shows."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, color_system=color, force_terminal=color is not None
    )
    console.print(terminal_map(cells, case, first))
    return stream.getvalue()


def line_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(name))


def test_it_reads_without_colour():
    """The first divergence is an X, digits grow with the excess, and nothing but text is there."""
    different = {
        (1, "0.cache", 2): 5.0,
        (1, "0.attention", 2): 15.0,
        (1, "0.mlp", 2): 2e12,
        (3, "0.mlp", 2): math.nan,
        (3, "0.kv", 2): math.inf,
    }
    text = printed(cells_of(CASE, 1, different), CASE)
    assert text.isascii()
    assert "\x1b" not in text
    assert re.search(r"^step +1 +2 +3 +4$", text, re.MULTILINE)
    assert line_of(text, "layer 1 cache").split("|")[1].split() == [".", ".", "X"]
    assert line_of(text, "layer 1 attention").split("|")[1].split() == ["2"]
    assert line_of(text, "layer 1 mlp ").split("|")[1].split() == ["7"]
    assert line_of(text, "layer 1 mlp ").split("|")[3].split() == ["!"]
    assert line_of(text, "layer 1 kv ").split("|")[3].split() == ["!"]
    assert "X first divergence" in text
    assert "First divergence: cache of layer 1, step 2, position 2" in " ".join(text.split())


def test_the_first_divergence_is_marked_where_it_was_located():
    """Also where the map shows nothing there."""
    text = printed(cells_of(CASE, 2, {}), CASE, {"step": 3, "site": "1.norm", "position": 2})
    assert line_of(text, "layer 2 norm").endswith("X")
    assert sum(line.count("X") for line in text.splitlines() if line.startswith("layer")) == 1


@pytest.mark.parametrize("width", [30, 40, 80, 200])
@pytest.mark.parametrize(("case", "layers"), [(CASE, 2), (LARGE, 60)])
def test_it_keeps_to_the_width(width, case, layers):
    """No line is longer than the terminal, and the mark is never lost."""
    place = (1, "1.mlp", 2 if case is CASE else 96)
    text = printed(cells_of(case, layers, {place: 9.0}), case, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert line_of(text, "layer 2 mlp ").count("X") == 1


def test_it_says_what_it_joined():
    """A model of 60 layers does not fill pages, and a case of 100 tokens not the line."""
    small = " ".join(printed(cells_of(CASE, 2, {}), CASE).split())
    text = printed(cells_of(LARGE, 60, {(1, "30.kv", 96): 3.0}), LARGE)
    large = " ".join(text.split())
    for word in ("One row holds", "One column of a step holds", "the largest of their places"):
        assert word in large
        assert word not in small
    assert len(text.splitlines()) < 52


def test_colours_add_nothing_to_the_text():
    """Without its escapes the coloured map is the plain one."""
    cells = cells_of(CASE, 2, {(1, "0.cache", 2): 5e4})
    coloured = printed(cells, CASE, color="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(cells, CASE)


def test_without_states_it_says_so():
    """Nothing to draw is one line."""
    assert printed([], CASE).startswith("no map of differences")
