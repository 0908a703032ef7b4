"""Mutants that declare that no case can kill them: checked, and the check can fail."""

import json
from dataclasses import replace
from importlib import import_module

import pytest

from kvfuzz.case.schedule import Crop, Fork, Padded, Reorder, Reset, Restore, Switch
from kvfuzz.subjects.zoo import cached
from kvfuzz.subjects.zoo.storage import paged
from mutants.equivalence import exhaustive as equivalents
from mutants.equivalence.exhaustive import (
    COLUMNS,
    MOVES,
    Confirmation,
    Refuted,
    all_programs,
    all_settings,
    confirm,
    declared_equivalents,
    digest,
    load_notes,
    why_unconfirmed,
)
from mutants.library.registry import find

DECLARED = {mutant.id: mutant for mutant in declared_equivalents()}


def test_every_declared_equivalent_is_confirmed_and_nothing_else_is_noted():
    """Written by `python -m mutants.equivalence.exhaustive` for the fault and the decoder that are
    there."""
    assert set(load_notes()) == set(DECLARED)
    assert {
        mutant_id: why_unconfirmed(mutant) for mutant_id, mutant in DECLARED.items()
    } == dict.fromkeys(DECLARED)
    assert DECLARED
    assert all(len(mutant.equivalent) > 20 for mutant in DECLARED.values())


IN_THREE = (
    "crop.wipes_what_it_drops",
    "restore.saves_empty_slots_too",
    "reuse.reset_leaves_the_blocks",
)
"""What replaces code that no program of two moves runs, but for the slowest."""
LONGER = pytest.mark.full(reason="seconds a fault; the code that they replace is under a digest")


@pytest.mark.parametrize(
    ("mutant_id", "longest"),
    [
        pytest.param(name, 3, marks=LONGER)
        if name == "reuse.reset_leaves_the_blocks"
        else (name, 3 if name in IN_THREE else 2)
        for name in DECLARED
        if name != "prefix.is_copied_when_it_is_forked"
    ]
    + [pytest.param(name, 3, marks=LONGER) for name in DECLARED if name not in IN_THREE],
)
def test_the_check_holds_when_it_is_made_again(mutant_id, longest):
    """On programs of few moves; the note is of longer ones, of which there are more."""
    again = confirm(DECLARED[mutant_id], longest=longest)
    assert again.digest == load_notes()[mutant_id].digest
    assert 0 < again.programs < load_notes()[mutant_id].programs
    settings = len(list(all_settings(DECLARED[mutant_id])))
    assert again.programs <= len(all_programs(longest)) * settings


@pytest.mark.parametrize(
    "mutant_id",
    [
        "append.drops_the_oldest",
        "crop.keeps_one_too_many",
        "fork.shares_its_storage",
        "padding.is_taken_for_text",
        "phase.turns_cached_keys_again",
        "prefix.is_not_copied_on_write",
        "read.passes_the_table_by",
        "reorder.takes_a_permutation_for_no_change",
        "restore.loses_the_recurrent_state",
        "reuse.reset_leaves_what_is_stored",
        "scale.keys_too_large",
    ],
)
def test_a_fault_that_is_called_equivalent_is_refuted(mutant_id):
    """Of each kind of operation; one of size 1e-12 is within the rounding, so it is larger here."""
    fault = find(mutant_id)
    fault = replace(fault, sizes={"float64": 1e-6} if fault.sizes else {})
    with pytest.raises(Refuted, match=r"\[.*\] with \{.*\}: "):
        confirm(replace(fault, equivalent="it is not"), longest=3)


def test_a_fault_that_no_program_reaches_is_not_confirmed():
    """It would agree on all of them."""
    unreached = replace(
        find("placebo.passes_through"), targets=("kvfuzz.localize.paths:compare_paths",)
    )
    with pytest.raises(Refuted, match="no program runs the code that it replaces"):
        confirm(unreached, longest=2)


def test_a_fault_that_raises_is_refuted():
    """The real decoder does not."""

    def raises(real):
        def store(*_):
            raise RuntimeError("loud")

        return store

    loud = replace(find("placebo.passes_through"), fault=raises)
    with pytest.raises(Refuted, match="loud"):
        confirm(loud, longest=2)


FAULT = '''
from mutants.mutant import mutant

FACTOR = 2


def halved(x):
    return x / FACTOR


@mutant("attend", equivalent="a reason")
def doubled(real):
    """A fault."""

    def attend(config, weights, layer, query, keys, values, index):
        return real(config, weights, layer, halved(query), keys * 2, values, index)

    return attend
'''


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """The digest of the fault of a file with this text."""
    monkeypatch.syspath_prepend(tmp_path)

    def digest_of(text):
        name = f"{tmp_path.name}_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(text)
        return digest(replace(import_module(name).doubled, operator="the same"))

    return digest_of


def test_a_confirmation_outlives_what_does_not_run(digest_of):
    """Comments, docstrings, annotations, the reason, and other faults in the file."""
    now = digest_of(FAULT)
    for old, new in (
        ("    return attend\n", "    return attend  # as above\n"),
        ("A fault.", "The same fault, in other words."),
        ("    def attend(config,", "    def attend(config: object,"),
        ("a reason", "another reason"),
        ("FACTOR = 2", "FACTOR = 2\n\n\ndef another(real):\n    return real\n"),
    ):
        assert old in FAULT
        assert digest_of(FAULT.replace(old, new)) == now, new


def test_a_confirmation_expires_with_the_faults_code(digest_of):
    """Its own lines, a helper, and a constant."""
    now = digest_of(FAULT)
    for old, new in (("keys * 2", "keys * 4"), ("x / FACTOR", "x // FACTOR"), ("R = 2", "R = 3")):
        assert old in FAULT
        assert digest_of(FAULT.replace(old, new)) != now, new


def test_a_confirmation_expires_with_what_the_fault_replaces(monkeypatch):
    """The function, what it calls, the class whose method it is, and the settings."""
    fault = DECLARED["scale.keys_are_halved_and_queries_doubled"]
    now = digest(fault)
    with monkeypatch.context() as patch:
        patch.setattr(cached, "attend", cached.visible)
        assert digest(fault) != now
        assert "changed since it was checked" in why_unconfirmed(fault)
        assert "python -m mutants.equivalence.exhaustive" in why_unconfirmed(fault)
    with monkeypatch.context() as patch:
        patch.setattr(cached, "visible", cached.readout)
        assert digest(fault) != now
    with monkeypatch.context() as patch:
        patch.setattr(cached, "embed", cached.readout)
        assert digest(fault) == now  # it has no part in attention
    fault = DECLARED["reuse.reset_leaves_the_blocks"]
    now = digest(fault)
    assert digest(replace(fault, needs={"cache": ("paged",)})) != now
    assert digest(replace(fault, targets=fault.targets * 2)) != now
    monkeypatch.setattr(paged, "Paged", paged.Paged.__base__)
    assert digest(fault) != now


def test_what_is_not_noted_is_not_confirmed(monkeypatch):
    """Nor is what is noted under an old digest."""
    fault = DECLARED["reuse.reset_leaves_the_blocks"]
    monkeypatch.setattr(equivalents, "load_notes", dict)
    assert "never checked" in why_unconfirmed(fault)
    monkeypatch.setattr(equivalents, "load_notes", lambda: {fault.id: Confirmation(1, "old")})
    assert "changed since it was checked" in why_unconfirmed(fault)


def test_the_programs_are_all_there_are():
    """Counted by hand for two moves, all token strings of each; every move is in some program."""
    two = [program for program in all_programs(2) if len(program.case.schedule) == 2]
    # A call of 1, of 2 or of 2 padded columns, and another: nine, each of 2 to 4 columns.
    assert len(two) == 9
    for program in two:
        tokens = program.case.tokens
        assert len(set(tokens)) == 2**program.case.length
    assert all(program.case.length <= COLUMNS for program in all_programs(4))
    kinds = {type(entry) for program in all_programs(4) for entry in program.case.schedule}
    assert kinds == {type(entry) for move in MOVES for entry in move}
    assert kinds == {int, Padded, Crop, Reorder, Fork, Switch, Restore, Reset}
    assert len({program.case for program in map(hashable, all_programs(3))}) == len(all_programs(3))


def hashable(program):
    """`program` with its case as text, which can be put into a set."""
    return replace(program, case=json.dumps(program.case.to_json()))


def test_padding_is_no_text():
    """Half of the rows are padded, and what pads them is compared with nothing."""
    (program,) = [p for p in all_programs(2) if p.case.schedule[1:] == (1,) and p.case.given][:1]
    assert program.text[0].all()
    assert program.text[1].tolist() == [False, True, True]
