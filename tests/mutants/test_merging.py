"""Shards put together give the table of the whole; any other set is refused by name."""

import json

import pytest

from kvfuzz.cli.main import main
from kvfuzz.errors import Inconclusive, UsageError
from mutants.campaign.merge import merge, read_score
from mutants.campaign.score import score
from tests.mutants.campaigns import table

IDS = (
    "append.prepends",
    "norm.skips_before_attention",
    "position.restarts_at_each_chunk",
    "reorder.goes_the_other_way",
    "scale.values_too_large",
)


def run(shard, **changes):
    asked = {"mutants": IDS, "seed": 2, "examples": 20, "shrink": False, "shard": shard, **changes}
    return score("zoo", **asked)


@pytest.fixture(scope="module")
def whole():
    """The campaign in one piece."""
    return run(None)


@pytest.fixture(scope="module")
def written():
    """The text of each of three shards' reports."""
    return [json.dumps(run((k, 3)).to_json(), default=str) for k in (1, 2, 3)]


@pytest.fixture
def shards(written, tmp_path):
    """Their files, the second first."""
    paths = [tmp_path / f"{k}.json" for k in (2, 1, 3)]
    for path in paths:
        path.write_text(written[int(path.stem) - 1])
    return paths


def edited(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_merged_shards_give_the_table_of_the_whole(shards, whole):
    """In whatever order they come; each shard had its own placebos and its own canary."""
    merged = merge(shards)
    assert [r for r in table(merged) if r.id in IDS] == [r for r in table(whole) if r.id in IDS]
    assert (merged.percent, merged.verdict) == (whole.percent, whole.verdict)
    assert merged.identity == whole.identity
    assert len(merged.placebos) == 3 * len(whole.placebos) == 12
    assert [canary.state for canary in merged.canaries] == ["killed"] * 3
    assert merged.shard is None


def test_each_shard_has_its_own_part(shards):
    """Every mutant in exactly one."""
    parts = [result.id for path in shards for result in read_score(path).results]
    assert sorted(parts) == sorted(IDS)
    assert read_score(shards[1]).shard == (1, 3)


def test_a_missing_shard_is_named(shards):
    """There is no score without it: inconclusive, not 100 % of what is there."""
    with pytest.raises(Inconclusive, match=r"without all shards: 2/3 missing"):
        merge(shards[1:])
    with pytest.raises(Inconclusive, match=r"without all shards: 1/3, 3/3 missing"):
        merge(shards[:1])


def test_a_shard_that_is_there_twice_is_named(shards, tmp_path):
    """With both files."""
    copy = tmp_path / "copy.json"
    copy.write_text(shards[0].read_text())
    with pytest.raises(UsageError, match=r"shard 2/3 is given twice: .*2\.json and .*copy\.json"):
        merge([*shards, copy])


def test_a_file_that_is_given_twice_is_named(shards):
    """Under whatever name."""
    again = shards[0].parent / "." / ".." / shards[0].parent.name / shards[0].name
    for one in (shards[0], again):
        with pytest.raises(UsageError, match=r"2\.json is given twice"):
            merge([*shards, one])


def test_a_state_that_there_is_not_is_no_way_out_of_the_score(shards):
    """A survivor by another name would vanish from the table."""
    mutants = json.loads(shards[0].read_text())["mutants"]
    mutants[0]["state"] = "banana"
    edited(shards[0], mutants=mutants)
    with pytest.raises(UsageError, match=rf"{mutants[0]['id']} has the unknown state 'banana'"):
        merge(shards)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 3), ("torch", "2.0.0"), ("code", "other"), ("matrix", True)]
)
def test_shards_of_different_campaigns_are_refused(shards, name, value):
    """With what differs, and its values."""
    identity = json.loads(shards[2].read_text())["identity"]
    edited(shards[2], identity={**identity, name: value})
    with pytest.raises(UsageError, match=rf"of different campaigns: {name} is .* and {value!r}"):
        merge(shards)


def test_shards_from_different_machines_are_merged(shards, whole):
    """Nobody can choose where a shard runs."""
    identity = json.loads(shards[2].read_text())["identity"]
    edited(shards[2], identity={**identity, "platform": "another", "backend": "AVX2"})
    assert merge(shards).percent == whole.percent


def test_shards_of_different_divisions_are_refused(shards):
    """Three thirds and a fourth are not a whole."""
    edited(shards[2], shard="3/4")
    with pytest.raises(UsageError, match="in 3 and 4 parts"):
        merge(shards)


@pytest.mark.parametrize("count", [1, 2])
def test_a_mutant_of_another_shard_or_of_this_one_again_is_refused(shards, count):
    """It would count twice in the score."""
    mutants = json.loads(shards[1].read_text())["mutants"]
    other = json.loads(shards[count].read_text())["mutants"][0]
    edited(shards[1], mutants=[*mutants, other])
    with pytest.raises(
        UsageError, match=rf"1\.json contains {other['id']} twice; rerun that shard"
    ):
        merge(shards)


def test_a_shard_is_not_written_over(shards, capsys):
    """What it holds cannot be made again in a moment."""
    before = shards[1].read_bytes()
    words = [*map(str, shards), "--json", str(shards[1].parent / "." / shards[1].name)]
    assert main(["merge", *words]) == 2
    assert "is an input and would be overwritten: name another file" in capsys.readouterr().err
    assert shards[1].read_bytes() == before


@pytest.mark.parametrize("changes", [{"killed_by": 9999}, {"kills": [-1]}, {"killed_by": "x"}])
def test_a_kill_by_a_case_that_is_not_there_is_refused(shards, changes):
    """Reports show the case that killed."""
    mutants = json.loads(shards[1].read_text())["mutants"]
    edited(shards[1], mutants=[{**mutants[0], **changes}, *mutants[1:]])
    with pytest.raises(UsageError, match="is killed by a case that is missing"):
        merge(shards)


@pytest.mark.parametrize("name", ["canaries", "placebos"])
def test_a_shard_that_nothing_watched_over_is_no_part_of_a_score(shards, name):
    """Of a shard that lost them nobody knows whether it can be trusted."""
    edited(shards[1], **{name: []})
    with pytest.raises(Inconclusive, match=rf"1\.json lacks its {name}"):
        merge(shards)


def test_an_id_that_is_a_path_is_refused(shards):
    """Witnesses are written under their mutants' ids."""
    mutants = json.loads(shards[1].read_text())["mutants"]
    edited(shards[1], mutants=[{**mutants[0], "id": "../out"}, *mutants[1:]])
    with pytest.raises(UsageError, match=r"'\.\./out' is not a mutant id"):
        merge(shards)


def test_a_shard_that_lacks_a_mutant_is_named(shards):
    """With the mutant: a report that was cut short is no part of a score."""
    data = json.loads(shards[1].read_text())
    edited(shards[1], mutants=data["mutants"][1:])
    with pytest.raises(Inconclusive, match=rf"1\.json lacks {data['mutants'][0]['id']}"):
        merge(shards)


def test_a_void_shard_voids_the_whole(shards):
    """With its number and its reason."""
    edited(shards[0], verdict="inconclusive", score=None, reason="the placebo barked")
    merged = merge(shards)
    assert (merged.verdict, merged.percent) == ("inconclusive", None)
    assert merged.reason == "shard 2/3: the placebo barked"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "is not a report of kvfuzz score --json"),
        ('{"kind": "kvfuzz score", "schema": 7}', "has schema 7; this kvfuzz reads 1"),
        ('{"kind": "kvfuzz score", "schema": 1}', "is not a valid report: KeyError"),
    ],
)
def test_what_is_no_report_is_refused_in_a_line(tmp_path, text, message):
    """With its name."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        merge([path])
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UsageError, match="cannot read"):
        merge([tmp_path / "absent.json"])


def test_the_report_of_a_whole_campaign_is_no_shard(tmp_path, whole):
    """Which is told."""
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(whole.to_json()))
    with pytest.raises(UsageError, match="a whole campaign, not of a shard"):
        merge([path])
