"""The command line as a user types it: exit codes, one-line errors, files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODELS = "tests.subjects.models"
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Commands write `.kvfuzz/` where they are run."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)


def test_fuzz_agrees_with_exit_code_0(run):
    """What was run, and the seed, are printed."""
    code, out, err = run("fuzz", "zoo:rope", "--examples", 20, "--seed", 7, "--json", "out.json")
    assert (code, err) == (0, "")
    assert out.startswith("AGREED zoo:rope")
    assert "seed 7" in out
    result = json.loads(Path("out.json").read_text())
    assert (result["verdict"], result["cases"], result["counterexample"]) == ("agreed", 20, None)
    assert {"positions", "rows", "worst_excess", "seed"} <= set(result)


def test_fuzz_diverges_with_exit_code_1_and_replay_says_it_again(run):
    """The printed command replays the written file, until the fault is gone."""
    code, out, _ = run("fuzz", f"{MODELS}:ForgetsOnDecode", "--json", "out.json")
    assert code == 1
    command = next(line for line in out.splitlines() if "replay:" in line).split()[-2:]
    path = json.loads(Path("out.json").read_text())["counterexample"]
    assert command == ["replay", path]
    code, out, err = run("replay", path)
    assert code == 1
    assert err == f"importing subject {MODELS}:ForgetsOnDecode\n"
    assert out.startswith("DIVERGED at step 2 of 2")
    code, out, _ = run("replay", ".kvfuzz", "--subject", f"{MODELS}:Summing", "--json", "r.json")
    assert code == 0
    assert "AGREED" in out
    assert json.loads(Path("r.json").read_text())["verdict"] == "agreed"


def test_fuzz_is_inconclusive_with_exit_code_3(run):
    """Nothing compared is never green."""
    code, out, _ = run("fuzz", "tests.subjects.raising:NanInBoth", "--examples", 5)
    assert code == 3
    assert "INCONCLUSIVE" in out
    assert "both paths gave NaN" in out


def test_replay_of_an_empty_directory_is_inconclusive(run):
    """A gate without cases has nothing to say."""
    Path("cases").mkdir()
    assert run("replay", "cases")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fuzz"], "Missing argument 'SUBJECT'"),
        (["fuzz", "nosuch"], "unknown subject 'nosuch'"),
        (["fuzz", "zoo:rop"], "did you mean rope"),
        (["fuzz", "tests.subjects.raising:fails_to_build"], "OSError: no weights here"),
        (["fuzz", "tests.subjects.raising:LastLogitsOnly"], "returned logits of shape"),
        (["fuzz", "tests.subjects.broken:x"], "ZeroDivisionError: at import"),
        (["fuzz", "zoo", "--examples", "0"], "--examples"),
        (["fuzz", "zoo", "--examples", "many"], "'many' is not a valid integer"),
        (["fuzz", "zoo", "--seconds", "0"], "--seconds"),
        (["fuzz", "zoo", "--shard", "3/2"], "'3/2' is not K/N"),
        (["fuzz", "zoo", "--shard", "x"], "'x' is not K/N"),
        (["fuzz", "zoo", "-n", "0"], "'0' is not a positive number or auto"),
        (["fuzz", "zoo", "--max-length", "65"], "rows of 65 tokens are longer"),
        (["fuzz", "zoo", "--dtype", "float8"], "float8"),
        (["fuzz", "zoo", "--device", "nosuch"], "device 'nosuch' is not available"),
        (["fuzz", "zoo", "--config", "nosuch.json"], "cannot read --config nosuch.json"),
        (["fuzz", "zoo", "--json", "."], "cannot write .: it is a directory"),
        (["fuzz", "zoo", "--exampels", "3"], "--exampels"),
        (["fuzzz"], "there is no command 'fuzzz' (did you mean fuzz?)"),
        (["replay", "nosuch.json"], "there is no counterexample nosuch.json"),
        (
            ["score", "zoo", "--mutant", "append.drops_the_newst"],
            "did you mean append.drops_the_newest",
        ),
        (["score", "zoo", "--operator", "positon"], "did you mean position"),
        (
            ["score", f"{MODELS}:Summing", "--mutant", "crop.drops_one_too_many"],
            "is a fault of zoo",
        ),
        (["score", "--html", "/proc/nosuch/report.html"], "cannot write /proc/nosuch/report.html"),
        (["mutants", "nosuch"], "there is no mutant 'nosuch'"),
        (["fuzz", "mutant:nosuch"], "there is no mutant 'nosuch'"),
        (["audit", "--json", "/proc/nosuch/audit.json"], "cannot write /proc/nosuch/audit.json"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_2(run, arguments, message):
    """The value, the way out, and no traceback; nothing is written."""
    code, out, err = run(*arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("kvfuzz: ")
    assert message in err
    assert out == ""
    kept = Path(".kvfuzz/examples")  # the cases that Hypothesis would try first the next time
    assert [p for p in Path().rglob("*") if p.is_file() and kept not in p.parents] == []


def test_a_config_file_reaches_the_subject_and_the_counterexample(run):
    """What the user fixes is part of the case."""
    Path("c.json").write_text('{"layers": 1, "window": 3}')
    code, _, _ = run(
        "fuzz", "mutant:append.drops_the_newest", "--config", "c.json", "--json", "o.json"
    )
    assert code == 1
    case = json.loads(Path("o.json").read_text())["found"]["case"]
    assert (case["config"]["layers"], case["config"]["window"]) == (1, 3)


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "a JSON object, got list"), ("{", "not JSON")]
)
def test_a_config_file_that_is_no_object_is_refused(run, text, message):
    """By its name."""
    Path("c.json").write_text(text)
    code, _, err = run("fuzz", "zoo", "--config", "c.json")
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    "arguments", [["fuzz", "nosuch"], ["fuzz", "nosuch", "--json", "a/b/c.json"]]
)
def test_a_usage_error_leaves_no_folders(run, arguments):
    """They are made when something is written."""
    assert run(*arguments)[0] == 2
    assert list(Path().iterdir()) == []


@pytest.fixture
def broken_package(monkeypatch):
    """An installed package whose commands are a module that is missing and a thing that is none."""
    Path("broken-1.dist-info").mkdir()
    Path("broken-1.dist-info/entry_points.txt").write_text(
        "[kvfuzz.commands]\nbroken = nosuchmodule:command\nnumber = math:pi\n"
    )
    Path("broken-1.dist-info/METADATA").write_text("Name: broken\nVersion: 1\n")
    monkeypatch.syspath_prepend(os.getcwd())


def test_a_broken_command_of_another_package_leaves_the_others(run, broken_package):
    """The listing skips it and says why; the other commands do not mention it."""
    code, out, err = run("--help")
    assert code == 0
    assert "\n  score " in out
    assert "broken" not in out
    lines = err.splitlines()
    assert len(lines) == 2
    assert "kvfuzz: the command 'broken' (nosuchmodule:command) does not load" in lines[0]
    assert "kvfuzz: the command 'number' (math:pi) is not a click command but a float" in lines[1]
    assert run("fuzz", "zoo:rope", "--examples", 20)[::2] == (0, "")


def test_a_broken_command_is_refused_when_it_is_called(run, broken_package):
    """In one line, with what went wrong at its import."""
    code, out, err = run("broken")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "does not load: ModuleNotFoundError: No module named 'nosuchmodule'" in err


def test_output_that_cannot_be_written_ends_in_one_line(tmp_path):
    """Standard output is open for reading only, which fails as a full disk does."""
    (tmp_path / "out").write_text("")
    with (tmp_path / "out").open() as unwritable:
        done = subprocess.run(
            [sys.executable, "-m", "kvfuzz.cli.main", "fuzz", "--help"],
            stdout=unwritable, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "kvfuzz: OSError: [Errno 9] Bad file descriptor\n"


def test_output_that_the_terminal_cannot_show_ends_in_one_line(tmp_path):
    """A name in Greek on a terminal that knows Latin letters only."""
    (tmp_path / "\N{GREEK SMALL LETTER LAMDA}").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "kvfuzz.cli.main", "replay", "\N{GREEK SMALL LETTER LAMDA}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith("set PYTHONIOENCODING=utf-8\n")
    assert done.stderr.count("\n") == 1


SLOW = """
import multiprocessing, os, sys, time
from pathlib import Path
from tests.subjects.models import Summing

def mark(name):
    if multiprocessing.parent_process():
        Path(f"{os.getpid()}.{name}").touch()

class Slow(Summing):
    def uncached(self, tokens):
        mark("busy")
        if multiprocessing.parent_process():
            time.sleep(600)
        return super().uncached(tokens)

mark("born")
if __name__ == "__main__":
    from kvfuzz.cli.main import main
    sys.exit(main(["fuzz", "slow:Slow", "-n", "2"]))
"""


@pytest.mark.parametrize("moment", ["born", "busy"])
def test_an_interrupt_ends_a_parallel_run_at_once_in_one_line(tmp_path, moment):
    """While the workers start and while they work: no tracebacks of theirs, and no waiting."""
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "slow.py"], cwd=tmp_path, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(f"*.{moment}")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert list(tmp_path.glob(f"*.{moment}"))
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "kvfuzz: interrupted")


def test_score_writes_what_it_found(run):
    """JSON with the promised keys, an HTML page, and a witness for each kill that replays."""
    ids = ("layer.reads_the_layer_below", "layer.reads_the_layer_below_on_decode")
    code, out, _ = run(
        "score", *(word for name in ids for word in ("--mutant", name)), "--seed", 1,
        "--examples", 20, "--json", "s.json", "--html", "s.html",
    )  # fmt: skip
    assert code == 0
    assert "MUTATION SCORE 100.0 %" in out
    assert out.rstrip().endswith("s.html")
    result = json.loads(Path("s.json").read_text())
    assert (result["verdict"], result["score"]) == ("killed", 100)
    assert {m["operator"] for m in result["mutants"]} == {"layer"}
    for mutant in result["mutants"]:
        assert {"id", "operator", "state", "site", "witness"} <= set(mutant)
        code, replayed, _ = run("replay", mutant["witness"])
        assert code == 1
        # Cut, and not shrunk: only what the verdict shows to be needless is taken off.
        assert f"not fully shrunk: kvfuzz shrink {mutant['witness']} goes on" in replayed
        assert run("replay", mutant["witness"], "--subject", "zoo")[0] == 0
    assert not {p["id"] for p in result["placebos"]} & {m["id"] for m in result["mutants"]}


def test_score_keeps_the_command_that_gives_it_again(run):
    """The options that matter, with the seed that was drawn; and it does give the same table."""
    options = ["--operator", "layer", "--examples", 3, "--no-shrink", "--dtype", "float64"]
    run("score", *options, "--json", "a.json")
    first = json.loads(Path("a.json").read_text())
    assert first["command"] == (
        f"kvfuzz score zoo --operator layer --examples 3 --dtype float64 --seed {first['seed']}"
    )
    run(*first["command"].split()[1:], "--json", "b.json")
    again = json.loads(Path("b.json").read_text())
    states = [[(m["id"], m["state"], m["killed_by"]) for m in s["mutants"]] for s in (first, again)]
    assert states[0] == states[1]


def test_fail_under_alone_decides(run):
    """One case kills some mutants and not others."""
    some = ("--mutant", "append.prepends", "--mutant", "crop.leaves_its_slots_in_sight")
    asked = ("score", *some, "--examples", 3, "--seed", 1, "--no-shrink")
    for gate, code in (((), 1), (("--fail-under", 0), 0), (("--fail-under", 100), 1)):
        got, out, _ = run(*asked, *gate)
        assert got == code
        assert "SURVIVED " in out or "UNREACHED " in out


def test_the_library_can_be_listed_and_one_fault_shown(run):
    """With its source, its witness and the way to hunt it."""
    code, out, _ = run("mutants", "--operator", "norm", "--json", "m.json")
    assert code == 0
    listed = json.loads(Path("m.json").read_text())["mutants"]
    assert {m["operator"] for m in listed} == {"norm"}
    code, out, _ = run("mutants", "append.drops_the_newest")
    assert code == 0
    assert "def drops_the_newest(real)" in out
    assert "kvfuzz fuzz mutant:append.drops_the_newest" in out


def test_no_arguments_print_the_help(run):
    """As help, line by line, with the exit code of bad usage, as ruff and uv do."""
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err == run("--help")[1]
    assert "\n  fuzz " in err


def test_help_names_every_command_and_costs_no_torch():
    """A CLI's --help needs none of the heavy imports."""
    script = (
        "import sys; from kvfuzz.cli.main import main; main(['--help']); main(['score', '--help']);"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("audit", "fuzz", "replay", "score", "mutants"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("module", ["kvfuzz.cli", "kvfuzz.cli.main"])
def test_the_installed_command_ends_with_the_verdict(module):
    """The console script passes the exit code on; so does either module."""
    command = [sys.executable, "-m", module, "fuzz", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said, error = done.stderr.splitlines()
    assert (said, error[:30]) == ("loading nosuch ...", "kvfuzz: unknown subject 'nosuch'"[:30])
