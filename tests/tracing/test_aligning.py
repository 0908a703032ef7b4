"""Which entries of a state are about which tokens."""

from dataclasses import dataclass

import torch
from hypothesis import given
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


@given(calls(), st.sampled_from(["last", "middle", "first"]))
def test_new_tokens_are_found_on_whatever_axis(setting, where):
    """[rows, time, width], [rows, heads, time, width], [time, rows, width]."""
    shape = {"last": (0, 1), "middle": (0, 2, 1), "first": (1, 0)}[where]

    def shaped(values):
        wide = values[..., None].expand(*values.shape, WIDTH)
        if where == "middle":
            return wide[:, None].expand(-1, 97, -1, -1)
        return wide.transpose(0, 1) if where == "first" else wide

    assert len(shape)
    first = setting.slots - setting.fed
    found, right = shaped(examined(setting, first)), shaped(reference(setting))
    if where == "first" and len({setting.fed, setting.length, len(setting.places)}) < 3:
        return  # which of the axes is that of the rows cannot be told
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls())
def test_a_cache_holds_all_positions(setting):
    """[rows, heads, slots, width]."""
    if setting.slots == len(setting.places) or setting.length == len(setting.places):
        return
    found, right = (
        values[:, None, :, None].expand(-1, 97, -1, WIDTH)
        for values in (examined(setting, 0), reference(setting))
    )
    pieces = align(found, right, setting.sizes)
    is_right(pieces, setting, 0)
    assert all(piece.every or setting.fed == setting.slots for piece in pieces)


@given(calls(padded=False), st.data())
def test_a_window_holds_the_last_positions(setting, data):
    """Fewer than there are slots, and more than are new."""
    if setting.slots - setting.fed < 2:
        return
    held = data.draw(st.integers(setting.fed + 1, setting.slots - 1))
    first = setting.slots - held
    if held == len(setting.places):
        return
    found = examined(setting, first)[..., None].expand(-1, -1, WIDTH)
    right = reference(setting)[..., None].expand(-1, -1, WIDTH)
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls())
def test_rows_and_tokens_on_one_axis_are_parted(setting):
    """As a router of experts sees them."""
    rows, first = len(setting.places), setting.slots - setting.fed
    if rows == 1 or rows in (setting.fed, setting.length) or setting.fed == setting.length:
        return
    found = examined(setting, first).reshape(-1, 1).expand(-1, WIDTH)
    right = reference(setting).reshape(-1, 1).expand(-1, WIDTH)
    is_right(align(found, right, setting.sizes), setting, first)


@given(calls(padded=False), st.booleans())
def test_what_differs_is_in_the_piece(setting, new):
    """A wrong value at one place is seen at that place."""
    first = setting.slots - setting.fed if new else 0
    if len(setting.places) in (setting.slots, setting.fed, setting.length):
        return
    found = examined(setting, first)[..., None].repeat(1, 1, WIDTH)
    right = reference(setting)[..., None].repeat(1, 1, WIDTH)
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
