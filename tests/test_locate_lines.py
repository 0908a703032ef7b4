"""The line of a fault that changes which right state is read, in decoders of many designs."""

import pytest
import torch

import kvfuzz
from benchmarks.generated.draw import Fault
from benchmarks.generated.models import Model
from kvfuzz.localize.causes import Facts, find_cause
from kvfuzz.localize.lookalikes import WrongState
from kvfuzz.subjects.trace import Site

FILLED = "if _when.filled() else"
FAULTS = {
    "a factor is left out": (
        "lists",
        "x = self.embed_tokens(tokens) * self.scale",
        f"x = self.embed_tokens(tokens) {FILLED} self.embed_tokens(tokens) * self.scale",
    ),
    "a sum is left out": ("functions", "x = x + attended", f"x = x {FILLED} x + attended"),
    "a norm is left out": (
        "position_on_model",
        "queries = self.q_norm(queries)",
        f"queries = queries {FILLED} self.q_norm(queries)",
    ),
    "another state is read": (
        "linear_attention",
        "mixed = (upper / lower).transpose(1, 2).flatten(2)",
        f"mixed = ((value {FILLED} upper) / lower).transpose(1, 2).flatten(2)",
    ),
    "the wrong state is left for the next call": (
        "recurrent",
        "state = states[:, -1]",
        f"state = states[:, (0 {FILLED} -1)]",
    ),
    "in a branch without an axis of time": (
        "squeezed",
        "weights = scores.softmax(dim=1)",
        "weights = scores.softmax(dim=2)",
    ),
    "in a method that is not forward": (
        "squeezed",
        "x = self.token(token) + self.place.weight[position]",
        "x = self.token(token) + self.place.weight[position - 1]",
    ),
}


def located(tmp_path, name, text, becomes):
    """The location of the fault that puts `becomes` in the place of `text`, and its line."""
    model = Model(name, tmp_path)
    source = model.sources[name]
    start = source.index(text)
    line = source[:start].count("\n") + 1
    where = start, start + len(text)
    fault = Fault(name, "k", "always", name, (line, line), (1, 99), *where, becomes, "")
    copy = model.copied("one", [fault])
    try:
        case = kvfuzz.Case(((1, 2, 3, 4, 5, 6, 7),), (3, 1, 2, 1), 0, "float32")
        return kvfuzz.locate(model.made(copy), case), line
    finally:
        copy.forget()


@pytest.mark.parametrize("what", FAULTS)
def test_what_reads_the_wrong_right_state_is_named(what, tmp_path):
    """Also a statement that is left out, whose line computes nothing then."""
    found, line = located(tmp_path, *FAULTS[what])
    assert found.first.source.line == line
    assert found.candidates == ()


# The line to name is another than the changed one, which computes nothing then.
SHOWN = {
    "scores lack the keys of earlier calls": (
        "functions",
        "key = torch.cat((past[0], key), dim=3)",
        f"key = key {FILLED} torch.cat((past[0], key), dim=3)",
        "scores = torch.matmul(query, key) / SIZE**0.5",
    ),
    "a state of an earlier position is found at that position alone": (
        "squeezed",
        "x = x + mixed\n        x = x",
        f"x = _when.stale(self, 'x', x + mixed) {FILLED} x + mixed\n        x = x",
        "x = _when.stale(",
    ),
    "a variance over another axis": (
        "functions",
        "variance = x.pow(2).mean(-1",
        f"variance = x.pow(2).mean((0 {FILLED} -1)",
        "variance = x.pow(2)",
    ),
    "not a condition that no run has to compare it with": (
        "ring",
        "scores = query @ key.transpose(-1, -2)",
        f"scores = query @ key.transpose(-1, (-1 {FILLED} -2))",
        "scores = query @ key.transpose(-1, (",
    ),
    "NaN comes from a softmax": (
        "functions",
        "probabilities = torch.softmax(scores, dim=-1)",
        f"probabilities = torch.softmax(scores - (torch.inf {FILLED} 0), dim=-1)",
        "probabilities = torch.softmax(",
    ),
    "a token sees later ones in both paths": (
        "functions",
        "scores = scores + bias",
        "scores = scores - bias.nan_to_num(neginf=-1e30)",
        "scores = scores - bias",
    ),
    "no mask in both paths": (
        "functions",
        "scores = scores + bias",
        "scores = scores * 1",
        "probabilities = torch.softmax(",
    ),
    "a mask that hides nothing in both paths": (
        "squeezed",
        "columns > rows[:, None]",
        "columns > rows[:, None] + 99",
        "scores = scores.masked_fill(",
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_the_line_that_shows_the_fault_is_named(what, tmp_path):
    *fault, line = SHOWN[what]
    found, _ = located(tmp_path, *fault)
    assert found.first.source.text.startswith(line)


@pytest.mark.parametrize(
    ("name", "text", "becomes"),
    [
        (
            "linear_attention",
            "lower = lower + query @ sums.total",
            "lower = lower + key @ sums.total",
        ),
        ("convolution", "state = padded[:, :, -(KERNEL - 1) :]", "state = padded[:, :, -3:-1]"),
        (
            "paged",
            "offsets = (positions % PAGE).expand_as(pages)",
            "offsets = (positions % (PAGE - 1)).expand_as(pages)",
        ),
        (
            "linear_attention",
            "total = total + sums.total",
            "total = total - sums.total",
        ),
    ],
)
def test_where_it_cannot_know_it_says_unsure(name, text, becomes, tmp_path):
    """The right line is among the candidates, of which the first is the one named."""
    found, line = located(tmp_path, name, text, becomes)
    assert line in [each.line for each in found.candidates]
    assert found.candidates[0] == found.first.source


BETWEEN = {
    "an operand tells little": (
        "recurrent",
        "if state is not None and x.shape[1] == 1:",
        "if state is not None:",
        "state = decay[:, 0] * state + values[:, 0]",
    ),
    "an old value is read in place of a new one": (
        "squeezed",
        "x = x + mixed\n        x = x",
        f"x = _when.stale(self, 'x', x + mixed) {FILLED} x + mixed\n        x = x",
        "x = x + self.mlp(self.norm2(x))",
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_another_line_is_a_candidate(what, tmp_path):
    """And the line named comes first."""
    *fault, line = BETWEEN[what]
    found, _ = located(tmp_path, *fault)
    assert found.candidates[0] == found.first.source
    assert line in [each.text for each in found.candidates[1:]]


class Conditional:
    """Leaves out a statement that stands below a condition, on every decode."""

    vocab_size, max_length = 50, None

    def __init__(self):
        self.embedding = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))

    def run(self, tokens, start, shifts):
        states = self.embedding[tokens]
        if shifts:
            states = states + torch.arange(start, start + tokens.shape[1])[:, None]
        return states.tanh() @ self.embedding.T

    def uncached(self, tokens):
        return self.run(tokens, 0, True)

    def new_cache(self, batch):
        return 0

    def cached(self, tokens, cache):
        return self.run(tokens, cache, cache == 0), cache + tokens.shape[1]


def test_what_a_condition_leaves_out_may_be_the_condition():
    """Named is what reads the state; the line that was left out is a candidate."""
    found = kvfuzz.locate(Conditional(), kvfuzz.Case(((3, 5),), (1, 1), 0, "float32"))
    first, second = found.candidates
    assert first == found.first.source
    assert first.text == "return states.tanh() @ self.embedding.T"
    assert second.text.startswith("states = states + torch.arange")


class Skipping(Conditional):
    """Leaves out a function as a whole, on every decode."""

    def turned(self, states):
        return states + states.flip(-1)

    def run(self, tokens, start, shifts):
        states = self.embedding[tokens]
        states = self.turned(states) if shifts else states
        return states.tanh() @ self.embedding.T


def test_where_a_function_is_left_out_its_call_is_named():
    """None of its own lines runs in the step that goes wrong."""
    found = kvfuzz.locate(Skipping(), kvfuzz.Case(((3, 5),), (1, 1), 0, "float32"))
    assert found.first.source.text == "states = self.turned(states) if shifts else states"


class Repeating(Conditional):
    """Gives the logits of its first call back in every call."""

    def uncached(self, tokens):
        return self.run(tokens, 0, False)

    def new_cache(self, batch):
        return None

    def cached(self, tokens, cache):
        logits = self.run(tokens, 0, False)
        first = logits if cache is None else cache
        return first, first


def test_logits_of_another_call_are_named_by_the_call_of_the_model():
    """No operation of the model's code has made the difference."""
    found = kvfuzz.locate(Repeating(), kvfuzz.Case(((3, 5),), (1, 1), 0, "float32"))
    assert found.first.source.text == "logits = self.run(tokens, 0, False)"


class Fading:
    """The decoder of the README: its history fades on every decode."""

    vocab_size, max_length = 50, None

    def __init__(self):
        self.embedding = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))

    def uncached(self, tokens):
        return self.embedding[tokens].cumsum(1) @ self.embedding.T

    def new_cache(self, batch):
        return torch.zeros(batch, 16)

    def cached(self, tokens, cache):
        if tokens.shape[1] == 1:
            cache = cache * 0.99
        states = cache[:, None] + self.embedding[tokens].cumsum(1)
        return states @ self.embedding.T, states[:, -1]


def test_the_factor_is_that_of_the_line_named():
    """Not how far the sum that it goes into is off, which here is 0.995."""
    found = kvfuzz.locate(Fading(), kvfuzz.Case(((0, 0),), (1, 1), 0, "float32"))
    assert found.first.source.text == "cache = cache * 0.99"
    assert "it multiplies by 0.99)" in found.advice
    assert found.candidates == ()


def test_a_factor_that_is_not_of_the_line_is_not_printed():
    """The state is a multiple of the right one, but the line named does something else."""
    right = torch.arange(1.0, 9.0).reshape(1, 2, 4).double()
    state = WrongState(0.5 * right, right, (0, 1))
    site = Site("cache", 0)
    assert find_cause(site, 0, state, Facts())[1] == "it is 0.5 times what it should be"
    assert "0.5" not in find_cause(site, 0, state, Facts(factor=None))[1]


def test_a_rotation_without_positions_has_no_certain_cause():
    """A state of the same length may be at another position as well as rotated at another rate."""
    right = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    state = WrongState(torch.stack((right[..., 0], -right[..., 1], *right[..., 2:].unbind(-1)), -1))
    state = WrongState(state.found, right, (0, 1))
    site = Site("kv", 0)
    assert find_cause(site, 0, state, Facts())[0] == "rope scaling"
    assert find_cause(site, 0, state, Facts(unplaced=True))[0] == "unknown"


class WritesAnother(Fading):
    """Writes its keys into both halves of its cache, in every call: both cached paths have this."""

    def project(self, tokens):
        return self.embedding[tokens].tanh(), self.embedding[tokens].sin()

    def finish(self, keys, values):
        return (keys.cumsum(1) + values.exp().cumsum(1)) @ self.embedding.T

    def uncached(self, tokens):
        return self.finish(*self.project(tokens))

    def new_cache(self, batch):
        return torch.zeros(batch, 0, 16), torch.zeros(batch, 0, 16)

    def cached(self, tokens, cache):
        keys, _ = self.project(tokens)
        kept = torch.cat((cache[0], keys), 1)
        both = kept, torch.cat((cache[1], keys), 1)  # the fault
        return self.finish(*both)[:, -tokens.shape[1] :], both


def test_a_write_that_reads_another_state_is_named():
    """Not the first line after it that the uncached path has as well."""
    found = kvfuzz.locate(WritesAnother(), kvfuzz.Case(((0, 1, 2),), (1, 1, 1), 0, "float32"))
    assert "# the fault" in found.first.source.text


class Leaking(Fading):
    """Its rows, or its tokens, read each other in both paths."""

    def __init__(self, law):
        super().__init__()
        self.law = law

    def uncached(self, tokens):
        states = self.embedding[tokens]
        sums = states.cumsum(1)
        if self.law == "isolation":
            sums = sums + states[:1]  # the fault
        if self.law == "causality":
            sums = sums + states.mean(1, keepdim=True)  # the fault
        return sums @ self.embedding.T


@pytest.mark.parametrize("law", ["isolation", "causality"])
def test_a_law_that_is_broken_has_a_line(law):
    """The first result of a row, or of a token, that moves with another row or a later token."""
    hunt = kvfuzz.fuzz(lambda: Leaking(law), seed=0, laws=[law], examples=20)
    from kvfuzz.localize.other_laws import locate_by_law
    from kvfuzz.subjects.loading import as_factory

    case = kvfuzz.Case(((1, 2, 3, 4), (5, 6, 7, 8)), (4,), 0, "float32")
    found = locate_by_law(as_factory(lambda: Leaking(law)), case, law, False)
    assert "# the fault" in found.first.source.text
    assert hunt.verdict == "diverged"
    assert locate_by_law(as_factory(Fading), case, law, False) is None
