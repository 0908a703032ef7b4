"""Entries of a state are matched with the tokens that they are about."""

from dataclasses import dataclass

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kvfuzz.localize.operations.align import align, axis_sizes

WIDTH = 101  # no number of tokens, rows or heads


@dataclass(frozen=True)
class Setting:
    """A call: the position in each slot of each row, None for padding, and the sizes."""

    places: tuple
    fed: int
    length: int

    @property
    def slots(self):
        return len(self.places[0])

    @property
    def sizes(self):
        return axis_sizes(self.places, self.fed, self.length)


@st.composite
def calls(draw, padded=None):
    """Rows of slots, of which some may be padding."""
    rows, slots = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    fed = draw(st.integers(1, slots))
    pads = draw(st.booleans()) if padded is None else padded
    places = []
    for _ in range(rows):
        text = [not pads or draw(st.booleans()) for _ in range(slots)]
        text[-1] = True
        count = iter(range(slots))
        places.append([next(count) if real else None for real in text])
    longest = max(sum(place is not None for place in row) for row in places)
    alike = all(None not in row for row in places)
    length = longest
    if not alike:
        length = longest + 1
        while length in (fed, slots, rows):
            length += 1
    return Setting(tuple(map(tuple, places)), fed, length)


def value(row, position):
    """What a state holds about a position of a row."""
    return 1000.0 * row + position + 1


def reference(setting):
    """The values of all positions of all rows [rows, length]."""
    rows = range(len(setting.places))
    return torch.tensor([[value(row, at) for at in range(setting.length)] for row in rows])


def examined(setting, first):
    """Those of the slots from number `first` on [rows, slots]; padding holds -1."""
    return torch.tensor(
        [
            [-1.0 if place is None else value(row, place) for place in places[first:]]
            for row, places in enumerate(setting.places)
        ]
    )


def is_right(pieces, setting, first):
    """Whether each piece holds the same twice, at the positions that it names, and all of them."""
    seen = {}
    for piece in pieces:
        assert torch.equal(piece.found, piece.right)
        assert piece.found.shape[piece.axis] == len(piece.positions)
        rows = range(len(setting.places)) if piece.row is None else [piece.row]
        for row in rows:
            seen[row] = list(piece.positions)
    for row, places in enumerate(setting.places):
        assert seen[row] == [place for place in places[first:] if place is not None]


def wide(values):
    """[rows, time] as [rows, time, width]."""
    return values[..., None].expand(*values.shape, WIDTH)


def with_heads(values):
    """[rows, time] as [rows, heads, time, width]."""
    return wide(values)[:, None].expand(-1, 97, -1, -1)


def time_first(values):
    """[rows, time] as [time, rows, width]."""
    return wide(values).transpose(0, 1)


@given(calls(), st.sampled_from([wide, with_heads, time_first]))
def test_new_tokens_are_found_on_whatever_axis(setting, shape):
    """Wherever the axis of time is. One call in five is discarded."""
    if shape is time_first:  # else the shape does not tell which axis is that of the rows
        assume(len({setting.fed, setting.length, len(setting.places)}) == 3)
    first = setting.slots - setting.fed
    found, right = shape(examined(setting, first)), shape(reference(setting))
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls())
def test_a_cache_holds_all_positions(setting):
    """[rows, heads, slots, width]. One call in four is discarded: as many rows as tokens."""
    assume(len(setting.places) not in (setting.slots, setting.length))
    found, right = with_heads(examined(setting, 0)), with_heads(reference(setting))
    pieces = align(found, right, setting.sizes)
    is_right(pieces, setting, 0)
    assert all(piece.every or setting.fed == setting.slots for piece in pieces)


@given(calls(padded=False), st.data())
def test_a_window_holds_the_last_positions(setting, data):
    """Fewer than there are slots, and more than are new. One call in three is discarded: too short
    for a window."""
    assume(setting.slots - setting.fed >= 2)
    held = data.draw(st.integers(setting.fed + 1, setting.slots - 1))
    assume(held != len(setting.places))
    first = setting.slots - held
    found, right = wide(examined(setting, first)), wide(reference(setting))
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls())
def test_rows_and_tokens_on_one_axis_are_parted(setting):
    """As a router of experts sees them. Three calls in five are discarded: one row, or sizes
    that coincide."""
    rows, first = len(setting.places), setting.slots - setting.fed
    assume(rows > 1)
    assume(len({rows, setting.fed, setting.length}) == 3)
    found = examined(setting, first).reshape(-1, 1).expand(-1, WIDTH)
    right = reference(setting).reshape(-1, 1).expand(-1, WIDTH)
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls(padded=False), st.booleans())
def test_what_differs_is_in_the_piece(setting, new):
    """A wrong value at one place is seen at that place. Three calls in ten are discarded: as
    many rows as tokens."""
    first = setting.slots - setting.fed if new else 0
    assume(len(setting.places) not in (setting.slots, setting.fed, setting.length))
    found, right = wide(examined(setting, first)).clone(), wide(reference(setting))
    found[-1, -1, 5] += 1
    (piece,) = align(found, right, setting.sizes)
    wrong = (piece.found != piece.right).nonzero().tolist()
    assert wrong == [[found.shape[0] - 1, found.shape[1] - 1, 5]]


def test_the_axis_of_tokens_can_be_told_where_sizes_coincide():
    """As many heads as tokens: what is known from elsewhere decides."""
    sizes = axis_sizes([[0, 1, 2, 3]] * 2, 1, 4)
    state = torch.arange(128.0).reshape(2, 4, 4, 4)
    assert align(state, state, sizes)[0].axis == 1
    assert align(state, state, sizes, along=2)[0].axis == 2
    assert align(state, state, sizes, along=-1)[0].axis is None


def test_shapes_that_do_not_correspond_have_no_pieces():
    """Another number of axes, or a size that is none of the two runs'."""
    sizes = axis_sizes([[0, 1, 2, 3]], 1, 4)
    assert align(torch.ones(1, 1, 5), torch.ones(1, 4), sizes) is None
    assert align(torch.ones(1, 2, 5), torch.ones(1, 4, 6), sizes) is None
    padded = axis_sizes([[None, 0, 1], [0, 1, 2]], 1, 5)
    assert align(torch.ones(7), torch.ones(7), padded) is None
