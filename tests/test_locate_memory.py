"""Locating in decoders that write into memory they have from before, and of numbers that are
complex: what was written, and no part of it lost, is compared."""

from dataclasses import replace

import pytest
import torch

import kvfuzz
from kvfuzz.localize.operations.unwritten import UnwrittenMemory
from kvfuzz.subjects.uninitialised import ALLOCATING, filling_uninitialised
from tests.locate_cases import case
from tests.subjects import preallocating
from tests.subjects.faulty_decoders import line_of
from tests.subjects.preallocating import VOCAB

PROGRAM = case(1, 3, 1, vocabulary=VOCAB)


# What a buffer holds from before.


def test_what_an_earlier_run_has_left_in_a_buffer_is_no_state():
    """The line of the mask is named, and not of a write, also after runs on the same buffers."""
    subject = preallocating.SeesAheadDecoder()
    for program in (case(8, vocabulary=VOCAB), case(2, 5, 2, rows=3, vocabulary=VOCAB)):
        kvfuzz.check(subject, program)
    found = kvfuzz.locate(subject, PROGRAM)
    assert found.first.source.line == line_of(preallocating.SeesAhead)
    assert (str(found.first.site), found.cause) == ("0.attention", "mask alignment")
    assert "keys and values of earlier positions agree" in found.evidence


def test_nothing_is_named_in_buffers_that_are_right():
    """Though what they hold from before is another's, and is put back."""
    subject = preallocating.BufferedDecoder()
    kvfuzz.check(subject, case(9, vocabulary=VOCAB))
    found = kvfuzz.locate(subject, PROGRAM)
    assert (found.first, found.latent) == (None, ())


# What each operation has written.


def _written(write):
    """Which entries of four rows of three the `write` has written, as the recorder sees it."""
    table = torch.zeros(4, 3)
    memory = UnwrittenMemory([table])
    name, args = write(table)
    call = None, (table, *args), {}
    memory.note(name, call, table, writes=True)
    found = memory.written(table)
    return torch.ones(4, 3, dtype=torch.bool) if found is None else found


ROW_1 = torch.tensor([[False] * 3, [True] * 3, [False] * 3, [False] * 3])
WRITES = {
    "slice": lambda t: ("__setitem__", (slice(1, 2), 5.0)),
    "indices": lambda t: ("__setitem__", (torch.tensor([1]), 5.0)),
    "index_copy": lambda t: ("index_copy_", (0, torch.tensor([1]), torch.ones(1, 3))),
    "scatter": lambda t: ("scatter_", (0, torch.tensor([[1, 1, 1]]), torch.ones(1, 3))),
    "index_put": lambda t: ("index_put_", ((torch.tensor([1]),), torch.ones(3))),
    "mask": lambda t: ("masked_fill_", (ROW_1, 5.0)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_only_what_is_written_counts(write):
    """Of memory from before the recording, by any operation that writes a part."""
    assert torch.equal(_written(write), ROW_1)


def test_what_writes_all_leaves_nothing_unwritten():
    """An operation without a rule of its own counts as one that writes all of its operand."""
    assert _written(lambda _: ("zero_", ())).all()
    assert _written(lambda _: ("index_copy_", ("no axis",))).all()


def test_a_view_shares_what_was_written_and_a_copy_keeps_it():
    """A transposed view, a clone of it, and a selection of rows."""
    memory, table = UnwrittenMemory(), torch.zeros(4, 3)
    memory.note("empty", (torch.empty, (), {}), table, writes=False)
    memory.note("__setitem__", (None, (table, slice(1, 2), 1.0), {}), table, writes=True)
    assert torch.equal(memory.written(table.T), ROW_1.T)
    copy = table.T.clone()
    memory.note("clone", (torch.clone, (table.T,), {}), copy, writes=False)
    assert torch.equal(memory.written(copy), ROW_1.T)
    rows = torch.tensor([1, 0])
    taken = table.index_select(0, rows)
    memory.note("index_select", (torch.index_select, (table, 0, rows), {}), taken, writes=False)
    assert torch.equal(memory.written(taken), ROW_1[[1, 0]])
    assert memory.written(torch.zeros(4, 3)) is None
    assert memory.blanked(torch.full((4, 3), torch.nan), table).nansum() == 0


# Memory that nothing has written to.

WRONG = [
    preallocating.ReadsAll,
    preallocating.ReadsAllOfEmptyLike,
    preallocating.ReadsAllOfNewEmpty,
    preallocating.ReadsAllOfEmptyStrided,
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("subject", WRONG)
def test_reading_what_nothing_has_written_diverges_at_the_line_that_reads(subject, dtype):
    """Every time, whatever is in memory, and in both dtypes."""
    program = replace(PROGRAM, dtype=dtype)
    assert kvfuzz.check(subject(), program).status == "diverged"
    found = kvfuzz.locate(subject, program)
    assert found.first.source.line == line_of(preallocating.ReadsAll)
    assert (found.cause, found.suspect) == ("uninitialised memory", "cached")
    assert "torch.empty" in found.advice


@pytest.mark.parametrize("seed", range(3))
def test_a_hunt_finds_it(seed):
    """Under default settings."""
    hunt = kvfuzz.fuzz(preallocating.ReadsAll, seed=seed, examples=20)
    assert hunt.verdict == "diverged"


RIGHT = [
    preallocating.EmptyDecoder,
    preallocating.WhereDecoder,
    preallocating.FilledDecoder,
    preallocating.Turning,
]


@pytest.mark.parametrize("subject", RIGHT)
def test_what_writes_before_it_reads_agrees(subject):
    """Or cuts off, or replaces, what is not written."""
    assert kvfuzz.check(subject(), PROGRAM).status == "agreed"
    assert kvfuzz.fuzz(subject, seed=0, examples=20).verdict == "agreed"


def test_whole_numbers_are_large():
    """A count that begins with what is in memory."""
    assert kvfuzz.check(preallocating.CountsInEmpty(), PROGRAM).status == "diverged"


def test_torch_is_as_before_afterwards():
    """Also after an error, and the context may be entered again inside."""

    def places():
        return [torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty]

    before = places()
    with filling_uninitialised():
        assert torch.empty(3).isnan().all()
        assert torch.empty(3, dtype=torch.bool).all()
        assert (torch.empty(3, dtype=torch.int8) == 127).all()
        assert torch.empty(2, dtype=torch.complex64).isnan().all()
        assert torch.empty(0).numel() == 0
        assert torch.zeros(2).new_empty(2).isnan().all()
        with filling_uninitialised():
            pass
        assert torch.empty(3).isnan().all()
    with pytest.raises(ValueError, match="no"), filling_uninitialised():
        raise ValueError("no")
    assert places() == before
    assert "new_empty" not in vars(torch.Tensor)
    assert "new_empty" in ALLOCATING


# Complex numbers.


def test_the_imaginary_part_counts():
    """It alone is wrong: the line that takes the table is named, and not what it goes into."""
    found = kvfuzz.locate(preallocating.ConjugatesLater, PROGRAM)
    assert found.first.source.line == line_of(preallocating.ConjugatesLater)
    assert (found.first.step, found.first.position) == (1, 1)
