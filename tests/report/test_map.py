"""The map of differences: what it colours, what it marks, and what it joins."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.files import to_json_text
from kvfuzz.case.schedule import Crop, Reorder
from kvfuzz.localize.location import Divergence, SiteDifference
from kvfuzz.report.map import (
    LEVELS,
    PAGE,
    MapSize,
    difference_table,
    level,
    short,
    times,
)
from kvfuzz.subjects.trace import IN_LAYER, Site

LARGE = Case((tuple(range(100)),), (96, 1, 1, 1, 1))
TOKENWISE = Case((tuple(range(50)),), (1,) * 50)
OPERATIONS = Case(((1, 2, 3, 4, 5),) * 2, (3, 1, Crop(2), Reorder((1, 0)), 1))


def agreeing(case, layers=2, kinds=IN_LAYER):
    """The cells of a subject that reports `kinds` in so many layers, where nothing differs."""
    names = [f"{layer}.{kind}" for layer in range(layers) for kind in kinds]
    cells = []
    for step in case.steps():
        start, stop = len(step.before[0]), len(step.after[0])
        for name in ["position", *names, "final_norm", "logits"]:
            in_cache = name.endswith(".cache")
            held = range(0 if in_cache else start, stop if in_cache or step.feeds else start)
            cells += [SiteDifference(step.index, name, position, 0.5) for position in held]
    return cells


def differing(cells, place, excess=5.0):
    """`cells` with another excess at one `place`."""
    there = [(cell.step, cell.site, cell.position) for cell in cells].index(place)
    return [*cells[:there], replace(cells[there], excess=excess), *cells[there + 1 :]]


def at(step, site, position):
    """A first divergence there."""
    return Divergence(step, 0, position, Site.parse(site), 5.0, 1.0)


def marked(table):
    return [cell for row in table.rows for cell in row.cells if cell.first]


def coloured(table):
    return [cell for row in table.rows for cell in row.cells if cell.level is not None]


def width(row):
    return sum(cell.span for cell in row.cells)


def test_levels_follow_the_excess():
    """What is allowed has no colour, and each level begins at its bound."""
    assert [level(0.0), level(1.0), level(1.01)] == [None, None, 0]
    assert [level(bound) for bound in LEVELS[1:]] == list(range(1, len(LEVELS)))
    assert level(float("inf")) == len(LEVELS) - 1


@pytest.mark.parametrize(
    ("excess", "cell", "words"),
    [
        (0.5, "·", "0.5"),
        (7.34, "7.3", "7.34"),
        (999.9, "999", "1,000"),
        (15234.0, "2e4", "15,200"),
        (1.82e13, "2e13", "1.82e13"),
        (float("inf"), "∞", "∞"),
    ],
)
def test_numbers_fit_their_cells(excess, cell, words):
    """A cell holds four characters at most, the words three digits."""
    assert short(excess) == cell
    assert times(excess) == f"{words} \N{MULTIPLICATION SIGN}"


def test_without_cells_there_is_no_map():
    """A subject that reports nothing has none."""
    assert difference_table([], OPERATIONS, None) is None


def test_every_place_has_its_own_cell_where_there_is_room():
    """Nothing is joined, and nothing said of it; rows are in the canonical order."""
    cells = agreeing(OPERATIONS)
    random.Random(0).shuffle(cells)
    table = difference_table(cells, OPERATIONS, None)
    held = [cell for row in table.rows for cell in row.cells if cell.held]
    assert len(held) == len(cells)
    assert (table.notes, marked(table), coloured(table)) == ((), [], [])
    sites = sorted({Site.parse(cell.site) for cell in cells}, key=lambda site: site.order)
    assert [row.prose for row in table.rows] == [site.prose for site in sites]
    assert {width(row) for row in table.rows} == {table.columns}


def test_steps_that_only_change_the_cache_are_drawn():
    """A crop and a reordering have columns, in the rows of the cache only."""
    cells = differing(agreeing(OPERATIONS), (3, "1.cache", 1))
    table = difference_table(cells, OPERATIONS, None)
    assert [head.kind for head in table.heads] == ["prefill", "decode", "crop", "reorder", "decode"]
    assert [head.words for head in table.heads][2:4] == ["crop 2", "reorder [1, 0]"]
    assert "First divergence: cache of layer 2, step 4, position 1" in table.summary
    (cell,) = marked(table)
    assert cell.title.startswith(f"first divergence: {times(5.0)} the allowed")


@pytest.mark.parametrize("kinds", [("kv", "cache"), ("attention",), ()])
def test_any_sites_will_do(kinds):
    """A model may report a part of the sites."""
    case = Case(((1, 2, 3),), (2, 1))
    table = difference_table(agreeing(case, 3, kinds), case, None)
    assert len(table.rows) == 3 * len(kinds) + 3


def test_the_located_place_is_marked():
    """Also where another place differs before it; as a value or as JSON holds it."""
    cells = differing(agreeing(OPERATIONS), (1, "0.norm", 3))
    cells = differing(cells, (1, "1.mlp", 3), 70.0)
    first = at(1, "1.mlp", 3)
    for given in (first, first.to_json()):
        (cell,) = marked(difference_table(cells, OPERATIONS, given))
        assert "(MLP of layer 2, step 2, position 3, the fourth token)" in cell.title
        assert cell.text == "70"
    (cell,) = marked(difference_table(cells, OPERATIONS, None))
    assert "(normalised hidden state of layer 1, step 2, " in cell.title


def test_a_place_that_the_map_lacks_is_said():
    """It marks no other one in its stead."""
    table = difference_table(agreeing(OPERATIONS), OPERATIONS, at(1, "1.mlp", 77))
    assert marked(table) == []
    assert table.notes == ("The place of the first divergence is not on the map.",)


def test_a_divergence_below_the_rounding_is_explained():
    """When the place that was located shows nothing in the case's dtype, the map says why."""
    case = Case(((1, 2),), (2,))
    cells = [
        {"step": 0, "site": "logits", "position": 1, "excess": 3.0},
        {"step": 0, "site": "0.cache", "position": 0, "excess": 0.5},
    ]
    located = {"step": 0, "site": "0.cache", "position": 0}
    hidden, seen = difference_table(cells, case, located), difference_table(cells, case, None)
    assert "located in float64" in " ".join(hidden.notes)
    assert [row.prose for row in hidden.rows] == ["cache of layer 1", "logits"]
    assert seen.notes == ()
    assert "First divergence: logits" in seen.summary


@pytest.mark.parametrize("excess", [math.inf, math.nan])
def test_what_is_not_finite_differs_the_most(excess):
    """NaN compares as smaller than nothing, and is no agreement for that."""
    cells = differing(agreeing(OPERATIONS), (1, "1.kv", 3), excess)
    table = difference_table(cells, OPERATIONS, None)
    (cell,) = coloured(table)
    assert (cell.level, cell.missing, cell.first, cell.text) == (len(LEVELS) - 1, True, True, "∞")
    assert "is not finite" in cell.title
    assert "nan" not in cell.title


@pytest.mark.parametrize("excess", [7.0, math.inf, math.nan])
def test_the_map_of_a_file_is_the_map_of_the_values(excess):
    """Strict JSON holds "inf" and "nan" as text."""
    cells = differing(agreeing(OPERATIONS), (1, "1.kv", 3), excess)
    read = json.loads(to_json_text([asdict(cell) for cell in cells]))
    assert difference_table(read, OPERATIONS, None) == difference_table(cells, OPERATIONS, None)


def test_a_place_without_a_position_is_drawn():
    """Its position is -1, which is not printed."""
    case = Case(((1, 2),), (2,))
    table = difference_table([SiteDifference(0, "0.cache", -1, 9.0)], case, None)
    assert str(table.heads[0].columns[0]) == "-"
    assert "-1" not in table.summary + coloured(table)[0].title


@pytest.mark.parametrize("case", [LARGE, TOKENWISE], ids=["prefill", "token by token"])
@pytest.mark.parametrize("limits", [PAGE, MapSize(40, 58), MapSize(20, 8), MapSize(12, 1)])
def test_a_large_map_is_kept_within_its_limits(case, limits):
    """60 layers, and 100 positions or 50 steps: rows and columns fit, each row is whole, and it
    says that places were joined."""
    place = (3, "17.attention", case.length - 2 if case is LARGE else 3)
    cells = differing(agreeing(case, 60, ("kv", "cache", "attention", "mlp")), place)
    table = difference_table(cells, case, at(*place), limits)
    assert len(table.rows) <= limits.rows
    assert table.width <= limits.columns
    assert {width(row) for row in table.rows} == {table.columns}
    assert "Joined cells show the largest of their places." in table.notes
    (cell,) = marked(table)
    assert cell.level == 0
    names = [row.prose for row in table.rows]
    own = ["new query, key and value", "cache", "attention", "MLP"]
    assert [f"{kind} of layer 18" in names for kind in own] == [True] * 4


def test_joined_cells_show_the_largest_of_their_places():
    """Each place goes into one cell, of the excess that is the largest there; none is lost."""
    rng = random.Random(1)
    cells = [replace(c, excess=10 ** rng.uniform(-2, 14)) for c in agreeing(LARGE, 30)]
    by_excess = {cell.excess: cell for cell in cells}
    table = difference_table(cells, LARGE, at(0, "4.kv", 8), MapSize(20, 30))
    held = [cell for row in table.rows for cell in row.cells if cell.held]
    joined = [
        int(c.title.split("the most of ")[1].split()[0]) for c in held if "the most" in c.title
    ]
    alone = len(held) - len(joined)
    assert sum(joined) + alone == len(cells)
    worst = by_excess[max(by_excess)]
    there = f"{Site.parse(worst.site).prose}, step {worst.step + 1}, position {worst.position}"
    assert [cell.level for cell in held if there in cell.title] == [level(worst.excess)]


def test_one_fault_in_a_large_map_is_seen():
    """Wherever the only place that differs is, exactly one cell is coloured, and names it."""
    cells = agreeing(LARGE, 60)
    for cell in random.Random(2).sample(cells, 5):
        place = (cell.step, cell.site, cell.position)
        table = difference_table(differing(cells, place, 2e6), LARGE, None, MapSize(40, 50))
        (found,) = coloured(table)
        prose = Site.parse(cell.site).prose
        assert found.first
        assert f"{prose}, step {cell.step + 1}, position {cell.position}" in found.title


def test_earlier_positions_are_joined_before_computed_ones():
    """The steps that compute one position still show it in a cell of its own."""
    cells = agreeing(LARGE)
    table = difference_table(cells, LARGE, None)
    assert [len(head.columns) for head in table.heads] == [96, 2, 2, 2, 2]
    assert [str(column) for column in table.heads[1].columns] == ["0-95", "96"]
    assert table.notes[0] == "One column of a step holds all that it finds in its cache."


def test_what_has_no_cache_is_not_said_to_have_one():
    """Only what was joined is said."""
    case = Case((tuple(range(300)),), (300,))
    table = difference_table(agreeing(case, 1, ("mlp",)), case, None)
    assert table.notes[0] == "Columns hold up to 2 positions."


def test_density_follows_the_columns():
    """Numbers stand in cells as long as there are few."""
    seen = []
    for length in (5, 60, 100):
        case = Case((tuple(range(length)),), (length,))
        seen.append(difference_table(agreeing(case), case, None).density)
    assert seen == ["plain", "dense", "fine"]


@pytest.mark.parametrize("room", [1, 1.15, 2, 2.1])
@pytest.mark.parametrize("case", [OPERATIONS, LARGE, TOKENWISE])
def test_headings_do_not_overlap(room, case):
    """Each heading that is shown ends before the next one begins."""
    table = difference_table(agreeing(case), case, None, MapSize(80, 120))
    gap = 1 if table.gaps else 0
    start, free = 0.0, 0.0
    steps = list(table.step_labels(room))
    for head, label in zip(table.heads, steps, strict=True):
        assert not label or start >= free
        free = start + len(label) if label else free
        start += len(head.columns) * room + gap
    assert steps[0].startswith("1")
    assert free <= start + 4
    for head, labels in zip(table.heads, table.position_labels(room), strict=True):
        free = 0.0
        for index, label in enumerate(labels):
            assert not label or index * room >= free
            free = index * room + len(label) if label else free
        assert free <= len(head.columns) * room or not table.gaps
