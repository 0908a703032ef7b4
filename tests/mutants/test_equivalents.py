"""Mutants that declare that no case can kill them: checked, and the check can fail."""

import json
from dataclasses import replace

import pytest

from kvfuzz.case.schedule import Crop, Fork, Padded, Reorder, Reset, Restore, Switch
from mutants.equivalence import exhaustive as equivalents
from mutants.equivalence.exhaustive import (
    COLUMNS,
    MOVES,
    Confirmation,
    Refuted,
    all_programs,
    all_settings,
    confirmed,
    declared,
    digest,
    stored,
    unconfirmed,
)
from mutants.library.registry import find

DECLARED = {mutant.id: mutant for mutant in declared()}


def test_every_declared_equivalent_is_confirmed_and_nothing_else_is_noted():
    """Written by `python -m mutants.equivalence.exhaustive` for the fault and the decoder that are
    there."""
    assert set(stored()) == set(DECLARED)
    assert {
        mutant_id: unconfirmed(mutant) for mutant_id, mutant in DECLARED.items()
    } == dict.fromkeys(DECLARED)
    assert len(DECLARED) >= 7
    assert all(len(mutant.equivalent) > 20 for mutant in DECLARED.values())


@pytest.mark.parametrize("mutant_id", DECLARED)
def test_the_check_holds_when_it_is_made_again(mutant_id):
    """On programs of up to three moves; the note is of longer ones, of which there are more."""
    again = confirmed(DECLARED[mutant_id], longest=3)
    assert again.digest == stored()[mutant_id].digest
    assert 0 < again.programs < stored()[mutant_id].programs
    assert again.programs <= len(all_programs(3)) * len(list(all_settings(DECLARED[mutant_id])))


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
        confirmed(replace(fault, equivalent="it is not"), longest=3)


def test_a_fault_that_no_program_reaches_is_not_confirmed():
    """It would agree on all of them."""
    unreached = replace(
        find("placebo.passes_through"), targets=("kvfuzz.localize.paths:compare_paths",)
    )
    with pytest.raises(Refuted, match="no program runs the code that it replaces"):
        confirmed(unreached, longest=2)


def test_a_fault_that_raises_is_refuted():
    """The real decoder does not."""

    def raises(real):
        def store(*_):
            raise RuntimeError("loud")

        return store

    loud = replace(find("placebo.passes_through"), fault=raises)
    with pytest.raises(Refuted, match="loud"):
        confirmed(loud, longest=2)


def test_a_confirmation_expires_with_the_fault_and_with_the_decoder(tmp_path, monkeypatch):
    """Other needs, another target or another line in the decoder's files: another digest."""
    fault = DECLARED["reuse.reset_leaves_the_blocks"]
    now = digest(fault)
    assert digest(replace(fault, needs={"cache": ("paged",)})) != now
    assert digest(replace(fault, targets=fault.targets * 2)) != now
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "__init__.py").write_text("")
    (zoo / "cached.py").write_text("# another decoder")
    monkeypatch.setattr(equivalents.kvfuzz.zoo, "__file__", str(zoo / "__init__.py"))
    assert digest(fault) != now
    assert "changed since it was checked" in unconfirmed(fault)
    assert "python -m mutants.equivalence.exhaustive" in unconfirmed(fault)


def test_what_is_not_noted_is_not_confirmed(monkeypatch):
    """Nor is what is noted under an old digest."""
    fault = DECLARED["reuse.reset_leaves_the_blocks"]
    monkeypatch.setattr(equivalents, "stored", dict)
    assert "never checked" in unconfirmed(fault)
    monkeypatch.setattr(equivalents, "stored", lambda: {fault.id: Confirmation(1, "old")})
    assert "changed since it was checked" in unconfirmed(fault)


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
