"""The audit of the trained checkpoint, and that each of its checks can fail."""

import io
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from kvfuzz.audit.audit import BOUNDARY, audit, schedules
from kvfuzz.audit.findings import largest
from kvfuzz.audit.report import render
from kvfuzz.audit.sabotage import SABOTAGES, sabotage
from kvfuzz.case.files import to_json_text
from kvfuzz.errors import Inconclusive
from kvfuzz.subjects.injection import Faulty
from kvfuzz.subjects.zoo.checkpoint import MAX_LOSS, PATTERNS, train

PLACEBO = replace(SABOTAGES[0], name="placebo", fault=lambda real: real)


@pytest.fixture(scope="module")
def checkpoint():
    return train()


@pytest.fixture(scope="module")
def result(checkpoint):
    return audit(checkpoint=checkpoint)


def faulty(target, fault):
    """A wrap that puts `fault` into the cached path for good."""
    return lambda decoder: Faulty(decoder, [f"kvfuzz.subjects.zoo.cached:{target}"], fault)


class Shows:
    """The decoder, showing other keys than those it uses."""

    unused = None  # its cache is not the decoder's

    def __init__(self, decoder, change):
        self.decoder, self.change = decoder, change

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def new_cache(self, batch):
        return SimpleNamespace(real=self.decoder.new_cache(batch))

    def cached(self, tokens, cache):
        logits, real = self.decoder.cached(tokens, cache.real)
        return logits, SimpleNamespace(
            real=real, keys=[self.change(key) for key in real.keys], values=real.values
        )


class Says:
    """The decoder, with both paths' logits changed."""

    unused = None  # its cache is not the decoder's

    def __init__(self, decoder, change):
        self.decoder, self.change = decoder, change

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def uncached(self, tokens):
        return self.change(self.decoder.uncached(tokens))

    def cached(self, tokens, cache):
        logits, cache = self.decoder.cached(tokens, cache)
        return self.change(logits), cache


def text(result):
    console = Console(record=True, width=200, file=io.StringIO())
    render(result, console)
    return console.export_text()


def test_the_checkpoint_agrees_at_every_prefix_of_every_pattern(result):
    """Four lengths of four patterns, each below the frozen boundary with a margin of two."""
    assert (result.verdict, result.problems) == ("agreed", ())
    assert [(row.prefix, row.pattern) for row in result.rows] == [
        (length, pattern) for length in (1, 2, 3, 4) for pattern in PATTERNS
    ]
    assert result.tolerance == BOUNDARY == 1e-5
    assert result.max_abs_diff <= 5e-6
    assert all(row.last_abs_diff <= row.max_abs_diff for row in result.rows)
    assert all(row.max_abs_diff <= row.any_schedule_abs_diff for row in result.rows)


def test_the_cache_has_the_source_texts_shapes_and_bytes(result):
    """(1, 2, T, 2) per K or V tensor per layer: 2 x 2 x 1 x 2 x T x 2 x 4 = 64 T bytes."""
    for row in result.rows:
        assert row.cache_shape == (1, 2, row.prefix, 2)
        assert row.cache_bytes == row.expected_bytes == 64 * row.prefix


def test_both_deliberate_failures_are_caught_and_named(result):
    """A wrong position begins at the position ids, a wrong layer's cache at that cache."""
    position, layer = result.sabotages
    assert (position.name, position.caught) == ("wrong-position", True)
    assert (position.first_site, position.position) == ("position", 2)
    assert (layer.name, layer.caught, layer.first_site) == ("wrong-layer", True, "1.cache")
    assert layer.first_site_prose == "cache of layer 2"
    assert min(position.max_abs_diff, layer.max_abs_diff) > 0.1


def test_a_mismatch_from_the_third_position_on_says_where_to_look_first(result):
    """The source text's question: lengths 1 and 2 agree and 3 differs; the answer is its own."""
    item = result.sabotages[0]
    first, second, third, _ = item.by_prefix
    assert max(first, second) <= 2e-6
    assert third > 0.1
    assert item.advice == "inspect the position index of the third token"
    assert "  first: inspect the position index of the third token\n" in text(result)


def test_generation_is_the_same_with_and_without_the_cache(result):
    """Greedy and sampled, from the first tokens of each pattern, to the last position."""
    assert [item.mode for item in result.generations] == ["greedy"] * 4 + ["sampled"] * 4
    for item in result.generations:
        assert item.identical
        assert item.cached == item.uncached
        assert len(item.prompt) + len(item.cached) == 12
    for pattern, item in zip(PATTERNS, result.generations, strict=False):
        assert (item.prompt + item.cached) == pattern * 3


def test_a_do_nothing_sabotage_is_not_caught(checkpoint):
    """The control: the checker finds the faults, not the act of putting them in."""
    item = sabotage(checkpoint.decoder, PLACEBO, PATTERNS, BOUNDARY)
    assert (item.caught, item.first_site, item.advice) == (False, None, None)
    assert item.problem.startswith("placebo was not caught: it changes logits by ")


@pytest.mark.parametrize(
    ("wrap", "problem"),
    [
        (
            faulty("readout", lambda real: lambda *a: real(*a) + 1e-4),
            "prefix 1 of pattern 0 1 2 3: difference 0.0001",
        ),
        (
            lambda decoder: Shows(decoder, lambda key: key[..., None]),
            "prefix 1 of pattern 0 1 2 3: cache shape (1, 2, 1, 2, 1), expected (1, 2, 1, 2)",
        ),
        (
            lambda decoder: Shows(decoder, lambda key: torch.cat((key, key))[:1]),
            "prefix 1 of pattern 0 1 2 3: the cache takes 96 bytes, not 64",
        ),
        (
            faulty("advance", lambda real: lambda *a: 1 / 0),
            "prefix 1 of pattern 0 1 2 3: difference inf",
        ),
    ],
    ids=["logits", "shape", "bytes", "raises"],
)
def test_a_subject_that_is_wrong_is_not_passed(checkpoint, wrap, problem):
    """Each check of the audit can fail: logits, shape, bytes, an error."""
    result = audit(checkpoint=checkpoint, wrap=wrap)
    assert result.verdict == "diverged"
    assert result.problems[0].startswith(problem)
    assert result.problems[0] in text(result)


def test_a_fault_past_the_patterns_shows_in_generation_alone(checkpoint):
    """Position 6 read as 0: every prefix agrees, and what is generated does not."""

    def seventh_as_first(real):
        return lambda config, weights, tokens, index: real(
            config, weights, tokens, index * (index != 6)
        )

    result = audit(checkpoint=checkpoint, wrap=faulty("embed", seventh_as_first))
    assert result.verdict == "diverged"
    assert all("generation after" in problem for problem in result.problems)
    assert result.problems[0] in text(result)
    assert not result.to_json()["generation"]["identical"]


def test_a_sabotage_that_is_not_caught_fails_the_audit(checkpoint):
    """A checker that sees nothing is not a checker."""
    result = audit(checkpoint=checkpoint, sabotages=[PLACEBO])
    assert result.verdict == "diverged"
    assert result.problems[0].startswith("placebo was not caught")


def test_a_sabotage_blamed_on_another_site_fails_the_audit(checkpoint):
    """Caught is not enough: the first state that differs is known."""
    elsewhere = replace(SABOTAGES[0], expected="final_norm")
    result = audit(checkpoint=checkpoint, sabotages=[elsewhere])
    assert result.problems == ("wrong-position begins at final_norm, but position was named",)


def test_logits_that_are_all_zero_are_inconclusive(checkpoint):
    """Nothing but zeros in both paths is no agreement."""
    silent = audit(checkpoint=checkpoint, wrap=lambda decoder: Says(decoder, torch.zeros_like))
    assert {row.verdict(BOUNDARY) for row in silent.rows} == {"inconclusive"}
    assert math.isnan(silent.max_abs_diff)
    assert silent.verdict != "agreed"


def test_logits_that_are_nan_are_inconclusive(checkpoint):
    """There is no next token to choose, and the command ends with 3."""
    nan = partial(torch.full_like, fill_value=math.nan)
    with pytest.raises(Inconclusive, match="the logits hold NaN") as caught:
        audit(checkpoint=checkpoint, wrap=lambda decoder: Says(decoder, nan))
    assert caught.value.exit_code == 3


def test_an_audit_without_deliberate_failures_is_inconclusive(checkpoint):
    """Nothing has shown then that the checker can fail."""
    assert audit(checkpoint=checkpoint, sabotages=[]).verdict == "inconclusive"


def test_two_audits_give_equal_json_and_leave_torch_as_it_was(result):
    """Whatever the global random state, default dtype and thread count."""
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    state = torch.get_rng_state()
    try:
        again = audit()
        assert torch.get_num_threads() == 2
        assert torch.get_default_dtype() is torch.float64
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
    assert to_json_text(again.to_json()) == to_json_text(result.to_json())


def test_the_command_writes_the_documented_keys(run, tmp_path, monkeypatch, checkpoint):
    """And exits with 0; the verdict is the last line."""
    monkeypatch.setattr("kvfuzz.subjects.zoo.checkpoint.train", lambda: checkpoint)
    code, out, _ = run("audit", "--json", tmp_path / "audit.json")
    assert code == 0
    assert out.splitlines()[-1].startswith("AGREED: largest difference ")
    data = json.loads((tmp_path / "audit.json").read_text())
    assert set(data) >= {"verdict", "tolerance", "max_abs_diff", "rows", "interventions"}
    assert set(data["rows"][0]) >= {"pattern", "prefix", "cache_shape", "max_abs_diff"}
    assert set(data["interventions"][0]) >= {"name", "caught", "first_site"}
    assert data["cache_bytes"] == {"prefix": 4, "measured": 256, "formula": 256}
    assert data["generation"]["identical"]
    assert data["training"]["loss"] <= data["training"]["max_loss"] == MAX_LOSS


def test_an_unwritable_path_is_refused_in_one_line(run, tmp_path):
    """Before the work, and with nothing half-written."""
    (tmp_path / "file").write_text("")
    code, out, err = run("audit", "--json", tmp_path / "file" / "audit.json")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "cannot write" in err


def test_schedules_are_every_way_to_cut_a_prefix():
    """2^(T-1) of them, the sequential one first."""
    assert list(schedules(3)) == [(1, 1, 1), (1, 2), (2, 1), (3,)]
    assert [len(list(schedules(length))) for length in (1, 2, 3, 4)] == [1, 2, 4, 8]


def test_the_largest_difference_never_hides_what_could_not_be_compared():
    """NaN stays, unless something is known to be infinitely wrong."""
    assert largest([1.0, 3.0]) == 3.0
    assert math.isnan(largest([math.nan, 3.0]))
    assert math.isnan(largest([]))
    assert largest([math.nan, math.inf]) == math.inf
