"""The journal: a campaign that was interrupted goes on, and gives the same table."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
import warnings

import pytest

from kvfuzz.cli.main import main
from kvfuzz.errors import UsageError
from kvfuzz.subjects.loading import Options
from mutants.campaign.journal import SCHEMA, Journal
from mutants.campaign.result import MutantOutcome, Result
from mutants.campaign.score import score
from tests.mutants.campaigns import (
    KILLED,
    SEVERAL,
    table,
)


def test_a_resumed_campaign_judges_only_what_is_missing(tmp_path):
    """It gives the same table; what the journal has is not judged again."""
    journal = tmp_path / "score.sqlite"
    whole = score("zoo", mutants=SEVERAL, seed=3, examples=30, shrink=False, journal=journal)
    with sqlite3.connect(journal) as file:
        file.execute("DELETE FROM judged WHERE mutant IN (?, ?)", SEVERAL[:2])
        file.execute("UPDATE judged SET judged = NULL WHERE mutant = ?", SEVERAL[2:3])
    seen = []
    resumed = score(
        "zoo",
        mutants=SEVERAL,
        examples=30,
        shrink=False,
        journal=journal,
        resume=True,
        progress=lambda result, to_come: seen.append((result.id if result else None, to_come)),
    )
    assert seen == [(name, 3) for name in (None, *SEVERAL[:3])]
    assert resumed.seed == 3
    assert table(resumed) == table(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 31}, "examples 30"),
        ({"mutants": SEVERAL[:2]}, "the last has other mutants;"),
        ({"options": Options(dtype="float32")}, "dtype null"),
        ({"matrix": True}, "matrix false"),
    ],
)
def test_another_campaign_is_not_resumed(tmp_path, changes, message):
    """The message says how the last one differs."""
    journal = tmp_path / "score.sqlite"
    asked = {"mutants": SEVERAL[:1], "examples": 30, "shrink": False}
    score("zoo", **asked, seed=3, journal=journal)
    with pytest.raises(UsageError, match=message):
        score("zoo", **{**asked, **changes}, journal=journal, resume=True)


def test_a_journal_of_an_earlier_version_is_refused_in_one_line(tmp_path, monkeypatch):
    """Results of other code are not mixed with those of this code."""
    from mutants.campaign import campaign

    journal = tmp_path / "score.sqlite"
    score("zoo", mutants=SEVERAL[:1], seed=3, examples=5, shrink=False, journal=journal)
    monkeypatch.setattr(campaign, "_code_digest", lambda _: "another")
    with pytest.raises(
        UsageError,
        match=r"ran with another version of kvfuzz",
    ):
        score("zoo", mutants=SEVERAL[:1], examples=5, shrink=False, journal=journal, resume=True)


def test_under_a_seed_a_journal_of_an_earlier_version_is_warned_of(tmp_path, monkeypatch):
    """The campaign begins anew, and says so; a first run has nothing to say."""
    from mutants.campaign import campaign

    asked = {"mutants": SEVERAL[:1], "seed": 3, "examples": 5, "shrink": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        score("zoo", **asked, journal=tmp_path / "score.sqlite", resume=True)
    monkeypatch.setattr(campaign, "_code_digest", lambda _: "another")
    with pytest.warns(UserWarning, match="no results of this campaign: all mutants are judged"):
        score("zoo", **asked, journal=tmp_path / "score.sqlite", resume=True)


def test_without_resume_a_campaign_is_judged_anew(tmp_path):
    """Its outcomes in the journal are deleted."""
    journal, seen = tmp_path / "score.sqlite", []
    for _ in range(2):
        score(
            "zoo", mutants=SEVERAL[:2], seed=3, examples=5, shrink=False, journal=journal,
            progress=lambda result, _: seen.append(result),
        )  # fmt: skip
    assert sum(result is not None for result in seen) == 2 * (2 + 5)


def test_a_resume_without_a_journal_or_of_a_broken_one_is_one_line(tmp_path, capsys, monkeypatch):
    """With the way out, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert main(["score", "zoo", "--resume", "--examples", "1"]) == 2
    assert "there is no campaign to resume in .kvfuzz/score.sqlite" in capsys.readouterr().err
    (tmp_path / "broken").write_text("this is no database, however long it may be" * 40)
    assert main(["score", "zoo", "--journal", "broken", "--examples", "1"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "cannot keep the journal broken: file is not a database" in said[0]


def test_a_journal_in_a_folder_that_cannot_be_is_one_line(tmp_path):
    """That names it, and the way out."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot keep the journal .*file.j: .*; name another"):
        Journal(tmp_path / "file" / "j")


def test_what_was_not_begun_in_time_is_judged_when_resumed(tmp_path):
    """A campaign that ran out of time goes on where it stopped."""
    journal = tmp_path / "score.sqlite"
    asked = {"mutants": (KILLED, "append.prepends"), "examples": 5, "shrink": False}
    asked["journal"] = journal
    late = score("zoo", **asked, seed=3, seconds=1e-6)
    assert {result.state for result in late.results} == {"timed_out"}
    # Nothing was judged, so there is nothing to score.
    assert (late.percent, late.verdict) == (None, "inconclusive")
    assert late.reason == "no mutant was judged in the available time"
    assert {r.state for r in score("zoo", **asked, resume=True).results} == {"killed"}


def test_a_journal_takes_two_campaigns_at_once(tmp_path):
    """Two shards may write into one file."""
    one, other = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    digests = [j.begin({"seed": n}, ["a"], False) for n, j in enumerate((one, other))]
    for journal, digest, state in ((one, digests[0], "killed"), (other, digests[1], "survived")):
        journal.note_begun(digest, "a")
        journal.note_judged(digest, MutantOutcome(Result("a", "b", state)))
    assert one.finished(digests[0])["a"].result.state == "killed"
    assert one.finished(digests[1])["a"].result.state == "survived"


def test_a_journal_that_is_lost_on_the_way_costs_no_result(package, tmp_path):
    """Later results are not kept, and a warning says so."""
    journal = tmp_path / "journal" / "score.sqlite"
    removes = f"import shutil\nshutil.rmtree({str(journal.parent)!r}, True)\nreturn real"
    ids, settings = package(removes), {"seed": 1, "examples": 5, "shrink": False}
    with pytest.warns(UserWarning, match=r"cannot keep the journal .* cannot be resumed"):
        found = score("zoo", mutants=ids, **settings, workers=1, journal=journal)
    assert {r.id: r.state for r in found.results} == {"package.fault": "survived", KILLED: "killed"}


@pytest.mark.filterwarnings("default")
def test_the_command_warns_in_one_line_that_the_journal_is_lost(package, tmp_path, capsys):
    """Without the place in our code."""
    removes = f"import shutil\nshutil.rmtree({str(tmp_path / 'kept')!r}, True)\nreturn real"
    chosen = [word for name in package(removes) for word in ("--mutant", name)]
    asked = ["--seed", "1", "--examples", "5", "-n", "1", "--no-shrink"]
    folders = ["--journal", str(tmp_path / "kept" / "score.sqlite"), "--folder", str(tmp_path)]
    assert main(["score", "zoo", *chosen, *asked, *folders]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "cannot be resumed" in line]
    assert [line.split(":")[0] for line in told] == ["warning"]


def test_the_database_of_another_program_is_left_alone(tmp_path):
    """It does not become a journal."""
    path = tmp_path / "mail.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE mail (subject TEXT)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"mail\.sqlite is a database of another program"):
        Journal(path)
    assert path.read_bytes() == before
    half = tmp_path / "half.sqlite"
    with sqlite3.connect(half) as file:
        file.execute(SCHEMA.partition(";")[0])  # what a kill may leave of the first beginning
    Journal(half).close()


COMMAND = [
    sys.executable, "-c", "from kvfuzz.cli.main import main; raise SystemExit(main())",
    "score", "zoo", "--examples", "20", "--no-shrink", "-n", "2",
    *(word for name in SEVERAL for word in ("--mutant", name)),
]  # fmt: skip


def run_and_kill(folder, seed, done, resume):
    """A real campaign in its own process group, killed with SIGKILL as soon as `done` of its
    mutants are judged and another has begun; returns its exit code. Not at all for None."""
    words = [*COMMAND, "--folder", str(folder), "--json", str(folder / "score.json")]
    words += ["--resume"] if resume else ["--seed", str(seed)]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    if done is not None:
        while process.poll() is None and not _has_come_to(folder / "score.sqlite", done):
            time.sleep(0.005)
        process.kill()
    return process.wait()


def _has_come_to(journal, done):
    """Whether the campaign has judged `done` mutants and begun another: ten there are in all."""
    if not journal.exists():
        return False
    with sqlite3.connect(journal) as file:
        try:
            begun, judged = file.execute("SELECT count(*), count(judged) FROM judged").fetchone()
        except sqlite3.Error:
            return False
    return judged >= done and begun > judged


@pytest.mark.parametrize(
    "kills",
    [1, pytest.param(3, marks=pytest.mark.full(reason="each kill costs three more processes"))],
)
def test_a_campaign_killed_at_random_moments_gives_the_same_table(tmp_path, kills):
    """Always in the midst of its work, each time further on, and then resumed to its end.
    `benchmarks/resuming.py` does it thirty times, by the clock. Its workers end with it, too."""
    seed = 1
    whole = score("zoo", mutants=SEVERAL, seed=seed, examples=20, shrink=False)
    moments = sorted(random.Random(seed).sample(range(7), kills))
    codes = [run_and_kill(tmp_path, seed, done, n > 0) for n, done in enumerate(moments)]
    assert codes == [-signal.SIGKILL] * kills
    assert not (tmp_path / "score.json").exists()
    assert run_and_kill(tmp_path, seed, None, True) in (0, 1)
    told = json.loads((tmp_path / "score.json").read_text())
    found = [{**m, "seconds": 0, "witness": None} for m in told["mutants"]]
    assert [(m["id"], m["state"], m["killed_by"], m["site"]) for m in found] == [
        (r.id, r.state, r.killed_by, r.site) for r in whole.results
    ]
