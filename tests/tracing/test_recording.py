"""Recording a model keeps its states and leaves no trace."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

import kvfuzz
from kvfuzz.case.case import Case
from kvfuzz.localize.operations import record as module
from kvfuzz.localize.operations.events import OUTPUT
from kvfuzz.localize.operations.modules import is_norm
from kvfuzz.localize.operations.record import WatchedSubject, record
from kvfuzz.subjects.float64 import Float64Subject, TwinlessSubject
from tests.subjects import decoders, faulty_decoders
from tests.subjects.decoders import Decoder, decoder

TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class Inner(nn.Module):
    """Computes on two lines."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = x * self.weight
        return y + 1


class Outer(nn.Module):
    """Calls one module twice and a second one, in a list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.blocks[0](x)))


class Subject:
    """What has a model."""

    def __init__(self, model):
        self.model = model


def run_recorded(model, *args, subject=None):
    """The events of a call of `model`, and its answer."""
    with torch.no_grad(), record(WatchedSubject(subject or Subject(model))) as found:
        found.step = 0
        answer = model(*args)
    return found, answer


def hooks():
    return len(torch_modules._global_forward_hooks), len(torch_modules._global_forward_pre_hooks)


def test_each_operation_has_its_module_and_line():
    """In order, with the result of each module after what it is made of."""
    found, _ = run_recorded(Outer(), torch.ones(2, 3))
    found_in = [(e.operation, e.module) for e in found.events]
    inner = [("mul", "blocks.0"), ("add", "blocks.0"), (OUTPUT, "blocks.0")]
    other = [(name, "blocks.1") for name, _ in inner]
    assert found_in == [*inner, *inner, *other, (OUTPUT, "<Outer>")]
    first = Inner.forward.__code__.co_firstlineno
    assert [e.place[1] - first for e in found.events[:2]] == [1, 2]
    assert found.line_of(found.events[0]).text == "y = x * self.weight"
    assert found.line_of(found.events[0]).function == "Inner.forward"


def test_each_operation_knows_what_its_operands_came_from():
    """A weight is no event; what was there before is unseen."""
    found, _ = run_recorded(Outer(), torch.ones(2, 3))
    by = [(e.operation, e.inputs, e.unseen) for e in found.events[:5]]
    assert by == [
        ("mul", (), True), ("add", (0,), False), (OUTPUT, (1,), False),
        ("mul", (1,), False), ("add", (3,), False),
    ]  # fmt: skip


def test_modules_of_a_subject_without_a_model_are_named_by_its_attributes():
    """Also in its lists and dicts, and where its float64 twin runs."""

    class Holds:
        def __init__(self):
            self.net, self.parts, self.named = Inner(), [Inner(), Outer()], {"last": Inner()}

    holds = Holds()

    def call(x):
        return holds.named["last"](holds.parts[1](holds.parts[0](holds.net(x))))

    for subject in (holds, Float64Subject(holds), TwinlessSubject(holds)):
        found, _ = run_recorded(call, torch.ones(2, 3), subject=subject)
        names = list(dict.fromkeys(event.module for event in found.events))
        assert names == [
            "net", "parts.0", "parts.1.blocks.0", "parts.1.blocks.1", "parts.1", "named.last"
        ]  # fmt: skip


def test_a_tensor_of_the_subject_is_a_weight():
    """It comes from nowhere, and yet is not unseen."""

    class Holds:
        table = torch.ones(3)

        def __init__(self):
            self.table = torch.ones(3)

    holds = Holds()
    found, _ = run_recorded(lambda x: holds.table * 2 + x, torch.ones(3), subject=holds)
    assert [event.unseen for event in found.events] == [False, True]


def test_what_is_written_in_place_is_what_later_views_come_from():
    """Slices, indices, augmented assignment, `out`, and functions with an `inplace` option."""

    def run(x):
        room = torch.zeros(4, 3)
        view = room[1:3]
        room[0:2] = x
        seen = view * 1
        room.index_copy_(0, torch.tensor([3]), x[:1])
        room += 1
        torch.add(room, 1, out=room)
        room.sub_(1)
        nn.functional.relu(room, inplace=True)
        nn.functional.relu(view.neg_(), inplace=True)
        return seen, room + 0

    found, _ = run_recorded(run, torch.ones(2, 3), subject=run)
    by = {event.operation: event for event in found.events}
    seen = by["mul"]
    assert by["__setitem__"].index in seen.inputs
    writes = [event.operation for event in found.events if event.writes]
    assert writes == ["__setitem__", "index_copy_", "add_", "sub_", "neg_"]
    (relu,) = (event for event in found.events if event.operation == "relu")  # one changed nothing
    assert relu.inputs == (by["neg_"].index,)
    assert relu.index in found.events[-1].inputs
    assert torch.equal(by["__setitem__"].output[:2], torch.ones(2, 3))


def test_a_copy_is_made_at_once():
    """What is written later does not change what was recorded."""

    def run(x):
        y = x + 1
        y.zero_()
        return y

    found, _ = run_recorded(run, torch.ones(2), subject=run)
    assert found.events[0].output.tolist() == [2, 2]
    assert found.events[1].output.tolist() == [0, 0]


def test_what_does_nothing_is_no_operation():
    """`to`, `contiguous` and `float` of what is so already."""
    found, _ = run_recorded(lambda x: (x + 1).to(torch.float32).contiguous().float(), torch.ones(2))
    assert [event.operation for event in found.events] == ["add"]


def test_operands_come_from_earlier_steps_too():
    """As a cache's do."""
    with record(WatchedSubject(Subject(None))) as found:
        found.step = 0
        kept = torch.ones(2) * 2
        found.step = 1
        kept + 1
    (made,) = (event.index for event in found.events if event.operation == "mul")
    assert found.of(1)[0].inputs == (made,)
    assert [event.step for event in found.events] == [0, 0, 1]


def test_exchanging_weights_is_no_operation():
    """The float64 twin does that before each call."""
    model = Inner()

    def run(x):
        model.weight.data = model.weight.data.double()
        return model(x)

    found, _ = run_recorded(run, torch.ones(3), subject=Subject(model))
    assert "__set__" not in [event.operation for event in found.events]


def test_attention_keeps_what_it_is_given():
    """But not what a projection is given."""
    found, _ = run_recorded(
        lambda q, k: (q @ k) @ weight, *torch.ones(2, 3, 3), subject=(held := Holder())
    )
    taps = [[tuple(tap.shape) for tap in event.taps] for event in found.events]
    assert taps == [[(3, 3), (3, 3)], []]
    assert held.weight is weight


weight = torch.ones(3, 3)


class Holder:
    def __init__(self):
        self.weight = weight


def recording_is_over():
    return torch._C._len_torch_function_stack() == 0 and hooks() == (0, 0)


def test_hooks_are_removed_when_the_model_raises():
    """And a module that raised is left behind."""

    class Raises(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    assert recording_is_over()
    with record(WatchedSubject(Subject(Raises()))) as found:
        found.step = 0
        with pytest.raises(RuntimeError):
            Raises()(torch.ones(1))
        torch.ones(1) + 1
    assert found.events[-1].module == ""
    with pytest.raises(ZeroDivisionError), record(WatchedSubject(Subject(Outer()))):
        raise ZeroDivisionError
    assert recording_is_over()


@pytest.mark.parametrize(
    "mixer", [decoders.Grouped, decoders.Fused, decoders.Kernel, decoders.Recurrence]
)
def test_a_recorded_model_computes_the_same_bits(mixer):
    """In both paths."""
    cls = decoders.RecurrentDecoder if mixer is decoders.Recurrence else decoder(mixer=mixer)
    subject = cls()

    def both():
        cache = subject.new_cache(2)
        first, cache = subject.cached(TOKENS, cache)
        return subject.uncached(TOKENS), first, subject.cached(TOKENS[:, :1], cache)[0]

    with torch.no_grad():
        plain = both()
        with record(WatchedSubject(subject)) as found:
            found.step = 0
            again = both()
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert len(found.events) > 100


def test_states_that_are_too_large_leave_modules_alone(monkeypatch):
    """And the location says so."""
    program = Case(((1, 2, 3, 4), (5, 6, 7, 8)), (3, 1))
    wrong = decoder(block=faulty_decoders.SkipsItsNorm)
    whole = kvfuzz.locate(wrong, program)
    assert whole.notes == ()
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    found, _ = run_recorded(Decoder().model, TOKENS)
    assert not found.whole
    assert {event.operation for event in found.events[-9:]} == {OUTPUT}
    coarse = kvfuzz.locate(wrong, program)
    assert "too large" in coarse.notes[0]
    assert coarse.first.module.startswith("layers.0.mlp")


def test_what_runs_under_vmap_is_passed_over():
    """Its numbers cannot be copied; its result can."""

    def run(x):
        return torch.vmap(lambda row: row * 2)(x) + 1

    found, answer = run_recorded(run, torch.ones(2, 3), subject=run)
    assert torch.equal(answer, torch.full((2, 3), 3.0))
    assert found.events[-1].operation == "add"
    assert "mul" not in [event.operation for event in found.events]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_scripted_shows_its_result():
    """And nothing inside."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3))

        def forward(self, x):
            return self.part(x) + 1

    found, _ = run_recorded(Net(), torch.ones(2, 3))
    assert ("add", "<Net>") in [(event.operation, event.module) for event in found.events]


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_what_is_compiled_runs_as_it_is_written():
    """So that its operations are seen, and the recorder is not compiled."""
    model = Outer()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = compiled(torch.ones(2, 3))
    found, answer = run_recorded(compiled, torch.ones(2, 3), subject=Subject(compiled))
    assert torch.equal(plain, answer)
    assert [event.operation for event in found.events].count("mul") == 3


class Gain(nn.Module):
    """A norm whose small number stands in its forward."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


def test_which_modules_normalise():
    """Told by their parts: weights of one dimension or one small number, nothing inside."""
    norms = [nn.LayerNorm(4), decoders.Norm(), nn.RMSNorm(4, eps=1e-5), Gain()]
    norms.append(nn.LayerNorm(4, elementwise_affine=False))
    others = [nn.Linear(4, 4), Outer(), nn.GELU(), nn.Dropout(0.5)]
    assert all(map(is_norm, norms))
    assert not any(map(is_norm, others))


def test_what_is_written_at_a_whole_number_is_that_entry():
    """Of a tensor for all layers the one of a layer, which knows what it was written with; each
    read knows every entry that was written, and the operation that made all."""

    def call(x):
        room = torch.zeros(3, 4, 2)
        room[1, :2] = x
        room[0, 2:] = x + 1
        room[1, :2] = x + 2
        room[:, 0] = 7.0
        return room[1] * 2

    found, _ = run_recorded(call, torch.ones(2))
    by = {e.index: e for e in found.events}
    writes = [e for e in by.values() if e.operation == "__setitem__"]
    assert [tuple(e.output.shape) for e in writes] == [(4, 2), (4, 2), (4, 2), (3, 2)]
    assert writes[0].output.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert writes[2].output.tolist() == [[3, 3], [3, 3], [0, 0], [0, 0]]
    (read,) = (e for e in by.values() if e.operation == "__getitem__")
    operations = [by[index].index for index in read.inputs]
    assert operations == [0, *sorted(e.index for e in writes[1:])]
    assert read.output.tolist() == [[7, 7], [3, 3], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    "index",
    [
        (None, 1),
        (torch.tensor([True, False, True]), 1),
        (slice(0, 2), torch.tensor([0, 1])),
        ...,
    ],
)
def test_what_is_written_elsewhere_is_the_whole(index):
    """A new axis and a mask move the axes after them; without a whole number it is all."""

    def call(x):
        room = torch.zeros(3, 4)
        room[index] = x
        return room + x

    found, answer = run_recorded(call, torch.ones(1))
    (write,) = (e for e in found.events if e.operation == "__setitem__")
    assert torch.equal(write.output + 1, answer)
