"""What is lost where no case has this or that: the mutants that survive then."""

import json

import pytest

from kvfuzz.case.case import Case
from kvfuzz.case.features import ELEMENTS
from kvfuzz.case.schedule import Crop, Reorder
from kvfuzz.cli.main import main
from mutants.campaign.features import by_schedule, schedule_json
from mutants.campaign.result import Result, Score
from mutants.campaign.score import score
from mutants.report.text import schedule_table

CASES = (
    Case(((1, 2),), (2,), config={"cache": "static", "mix": "uniform"}),
    Case(((1, 2, 3),), (2, Crop(1), 1), config={"cache": "paged", "mix": "uniform"}),
    Case(((1, 2), (3, 4)), (1, Reorder((1, 0)), 1), config={"cache": "ring", "mix": "recurrent"}),
)


def killed(name, *kills, laws=None):
    laws = laws or ("agreement",) * len(kills)
    return Result(name, "test", "killed", kills=kills, laws=laws, killed_by=kills[0], ran=3)


FOUND = Score(
    "survived",
    75.0,
    "zoo",
    0,
    CASES,
    (
        killed("test.everywhere", 0, 1, 2),
        killed("test.crop", 1),
        killed("test.rows", 2, laws=("isolation",)),
        Result("test.nowhere", "test", "survived", ran=3),
    ),
    matrix=True,
)


def worth(group, name):
    return next(w for w in by_schedule(FOUND) if (w.group, w.name) == (group, name))


@pytest.mark.parametrize(
    ("group", "name", "cases", "kills", "only"),
    [
        ("element", "crop", 1, 2, ("test.crop",)),
        ("element", "decode", 2, 3, ("test.crop", "test.rows")),
        ("element", "several rows", 1, 2, ("test.rows",)),
        ("element", "fork", 0, 0, ()),
        ("path", "one-shot prefill", 2, 2, ("test.crop",)),
        ("path", "incremental", 2, 3, ("test.crop", "test.rows")),
        ("law", "agreement", 3, 2, ("test.everywhere", "test.crop")),
        ("law", "isolation", 3, 1, ("test.rows",)),
        ("cache", "paged", 1, 2, ("test.crop",)),
        ("mix", "recurrent", 1, 2, ("test.rows",)),
    ],
)
def test_what_a_trait_is_worth(group, name, cases, kills, only):
    """The cases that have it, the mutants that some of them kill, and those that only they kill."""
    found = worth(group, name)
    assert (found.cases, found.killed, found.only) == (cases, kills, only)


def test_a_kill_has_the_settings_that_its_mutant_needs():
    """A case that was drawn with another cache has killed with the one that it was fitted to."""
    found = Score("killed", 100.0, "zoo", 0, CASES, (killed("window.turns_by_one_at_a_crop", 1),))
    told = schedule_json(found)["cache"]
    assert told["ring"]["only"] == ["window.turns_by_one_at_a_crop"]
    assert told["paged"] == {"cases": 1, "killed": 0, "only": []}


def test_every_element_is_told_and_no_law_that_nothing_broke():
    """What no case has is a row of noughts."""
    told = schedule_json(FOUND)
    assert tuple(told["element"]) == ELEMENTS
    assert set(told["law"]) == {"agreement", "isolation"}
    assert schedule_table(FOUND).row_count == sum(map(len, told.values()))


def test_the_command_runs_every_case_and_tells(tmp_path, monkeypatch, capsys):
    """`--by schedule` is a matrix, a table and a key of the JSON file."""
    monkeypatch.chdir(tmp_path)
    arguments = "score zoo --by schedule --mutant append.prepends --seed 1 --examples 6 --no-shrink"
    assert main([*arguments.split(), "--json", "score.json"]) == 0
    assert "mutants by schedule" in capsys.readouterr().out
    told = json.loads((tmp_path / "score.json").read_text())
    assert told["matrix"] is True
    assert told["by_schedule"]["path"]["incremental"]["only"] == ["append.prepends"]


TWO_EACH = {
    "extend": ("append.later_chunk_replaces_all", "norm.skips_on_later_chunks"),
    "decode": ("layer.reads_the_layer_below_on_decode", "phase.no_penalty_for_distance_on_decode"),
    "crop": ("crop.drops_one_too_many", "crop.forgets_the_last_layer"),
    "reorder": ("reorder.takes_a_permutation_for_no_change", "reorder.goes_the_other_way"),
    "select": ("reorder.frees_the_selected_rows", "reorder.takes_the_first_rows_for_the_selected"),
    "repeat": (
        "reorder.takes_the_next_row_for_a_repeated_one",
        "reorder.shares_the_blocks_of_a_repeated_row",
    ),
    "fork": ("fork.lacks_the_newest", "fork.starts_the_recurrent_state_anew"),
    "restore": ("restore.saves_one_slot_too_few", "restore.loses_the_recurrent_state"),
    "reset": ("reuse.reset_leaves_what_is_stored", "reuse.reset_leaves_the_first"),
    "new": ("reuse.begins_with_the_state_of_another", "reuse.takes_the_slots_of_another"),
    "switch": ("fork.shares_its_storage", "fork.takes_the_last_block_with_it"),
    "left padding": ("padding.on_the_left_is_taken_for_text", "padding.in_front_of_a_row_is_seen"),
    "right padding": (
        "padding.on_the_right_is_taken_for_text",
        "recurrent.takes_padding_on_the_right_in",
    ),
    "mask": ("padding.is_taken_for_text", "given.mask_hides_what_is_there"),
    "positions": (
        "given.positions_are_taken_for_offsets",
        "given.positions_make_way_for_slot_numbers",
    ),
    "several rows": ("read.takes_the_table_of_the_first_row", "reorder.of_two_rows_moves_one"),
}


def test_each_element_has_two_mutants():
    """In the order in which they are told."""
    assert tuple(TWO_EACH) == ELEMENTS


@pytest.fixture(scope="module")
def measured():
    """Two mutants for each element, on the cases of one seed."""
    ids = tuple(name for pair in TWO_EACH.values() for name in pair)
    return schedule_json(score("zoo", ids=ids, seed=0, examples=60, matrix=True, shrink=False))


@pytest.mark.parametrize("element", ELEMENTS)
def test_without_any_one_element_two_mutants_survive(element, measured):
    """Only cases that have it kill them."""
    assert set(TWO_EACH[element]) <= set(measured["element"][element]["only"])
