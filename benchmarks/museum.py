"""The museum: real bugs of real libraries, each hunted on the release that has it.

    python benchmarks/museum.py -n 2                      # all of them
    python benchmarks/museum.py --only tf-llama-dynamic-ntk --only tl-alibi-cached-bias-row
    python benchmarks/museum.py --locate                  # and where each one is
    python benchmarks/museum.py --json museum-result.json

`museum.json` holds the bugs: the subject and the settings that have it, the release that is buggy
and, if there is one, that which is fixed. A release is a folder of packages, installed without
their dependencies and put before those of this environment, so that torch and kvfuzz are the same
for all; by hand: `PYTHONPATH=.tox/museum/NAME kvfuzz fuzz SUBJECT --config FILE`.

Where a release has another bug that comes to light sooner, `expect` tells a hunt to pass it over.

For each bug kvfuzz hunts on the buggy release, replays what it found on the fixed one, and hunts
there as well. A bug is seen if the first hunt diverges and the replay agrees. What diverges on the
fixed release besides is listed with its own program. Exit code 1 if a bug is not seen.

`root_causes.json` says where the fault of each bug of a torch library is, read from the difference
between the two releases before anything was located: the file and the functions, and those that
its values reach first. With `--locate` what `kvfuzz locate` says stands beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kvfuzz.case.schedule import entry_from_json, schedule_text

COLLECTION = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SLUGS = [bug["slug"] for bug in COLLECTION["bugs"]]
CAUSES = json.loads(Path(__file__).with_name("root_causes.json").read_text(encoding="utf-8"))
ROOT_CAUSES = {cause["slug"]: cause for cause in CAUSES["root_causes"]}
MOST_SECONDS = 900


@dataclass
class Exhibit:
    """What became of one bug: verdicts, None where nothing was run, and programs in words."""

    slug: str
    fault: str
    buggy: str
    fixed: str | None
    verdict: str | None = None
    program: str = ""
    cases: int | None = None
    replay: str | None = None
    fixed_verdict: str | None = None
    fixed_program: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    located: dict[str, Any] | None = None

    @property
    def seen(self) -> bool:
        """Whether it was found, and was what the fixed release mends."""
        return self.verdict == "diverged" and (self.fixed is None or self.replay == "agreed")

    @property
    def place(self) -> str:
        """How far what was located is from the root cause."""
        first = (self.located or {}).get("first")
        if not first or not first.get("file"):
            return "nothing"
        return matched(first, ROOT_CAUSES[self.slug])


@click.command()
@click.option("--only", multiple=True, type=click.Choice(SLUGS), metavar="SLUG", help="This bug.")
@click.option("-n", "--workers", default=1, show_default=True, help="Bugs at a time.")
@click.option("--examples", default=400, show_default=True, help="Cases to draw in a hunt.")
@click.option("--seed", default=0, show_default=True, help="Seed of the hunts.")
@click.option("--folder", default=".tox/museum", show_default=True, type=click.Path(path_type=Path))
@click.option("--locate", is_flag=True, help="Locate each bug of a torch library.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
def main(
    only: tuple[str, ...],
    workers: int,
    examples: int,
    seed: int,
    folder: Path,
    locate: bool,
    json_file: Path | None,
) -> None:
    console, folder = Console(), folder.absolute()
    bugs = [bug for bug in COLLECTION["bugs"] if not only or bug["slug"] in only]
    names = sorted({bug[which] for bug in bugs for which in ("buggy", "fixed") if bug[which]})
    for name in track(names, "installing releases", console=Console(stderr=True)):
        install(name, folder)
    found = []
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(shown, bug, folder, examples, seed, locate) for bug in bugs]
        for job in track(as_completed(jobs), "hunting", len(jobs), console=Console(stderr=True)):
            found.append(job.result())
    found.sort(key=lambda exhibit: SLUGS.index(exhibit.slug))
    console.print(table(found))
    for line in remarks(found):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if locate:
        console.print(places(found))
    if json_file:
        data = [{**asdict(exhibit), "seen": exhibit.seen} for exhibit in found]
        json_file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(exhibit.seen for exhibit in found) else 1)


def install(name: str, folder: Path) -> None:
    """Put the packages of the release `name` into a folder, unless they are there."""
    release, target = COLLECTION["releases"][name], place(name, folder)
    done = target / "installed"
    if done.exists():
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
    subprocess.run([*command, *release["pins"], *COLLECTION["beside"]], check=True)
    for path, text in release.get("stubs", {}).items():
        (target / path).parent.mkdir(exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")
    done.touch()


def place(name: str, folder: Path) -> Path:
    """Where the release `name` is installed."""
    return folder / name.replace(" ", "-")


def shown(
    bug: Mapping[str, Any], folder: Path, examples: int, seed: int, locate: bool = False
) -> Exhibit:
    """Hunt for `bug` on its buggy release, and again on the fixed one; `locate` it if asked."""
    exhibit = Exhibit(bug["slug"], bug["fault"], bug["buggy"], bug["fixed"])
    start = time.perf_counter()
    desk = folder / "hunts" / bug["slug"]
    desk.mkdir(parents=True, exist_ok=True)
    expected = [{"subject": "*", **each} for each in bug.get("expect", [])]
    for name, value in (("config", bug["config"]), ("expect", expected)):
        (desk / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def hunt(release: str, which: str) -> dict[str, Any]:
        words = ["fuzz", bug["subject"], "--config", desk / "config.json", "--seed", seed]
        words += ["--examples", examples, "--folder", desk / which]
        words += ["--expected", desk / "expect.json"] if expected else []
        return kvfuzz(words, place(release, folder), desk / f"{which}.json")

    first = hunt(bug["buggy"], "buggy")
    exhibit.verdict, exhibit.cases = first["verdict"], first.get("cases")
    exhibit.program = program(first)
    exhibit.notes += first.get("problems", [])
    if locate and first.get("counterexample") and bug["slug"] in ROOT_CAUSES:
        words = ["locate", first["counterexample"]]
        exhibit.located = kvfuzz(words, place(bug["buggy"], folder), desk / "located.json")
        exhibit.notes += exhibit.located.get("problems", [])
    if bug["fixed"] is not None:
        if first.get("counterexample"):
            words = ["replay", first["counterexample"]]
            again = kvfuzz(words, place(bug["fixed"], folder), desk / "replay.json")
            exhibit.replay = again["verdict"]
            exhibit.notes += again.get("problems", [])
        second = hunt(bug["fixed"], "fixed")
        exhibit.fixed_verdict, exhibit.fixed_program = second["verdict"], program(second)
        exhibit.notes += second.get("problems", [])
    exhibit.seconds = time.perf_counter() - start
    return exhibit


def kvfuzz(words: list[Any], packages: Path, result: Path) -> dict[str, Any]:
    """What `kvfuzz WORDS` writes as JSON with `packages` before those of this environment; the
    verdict `error` and its `problems` if it writes nothing."""
    command = [sys.executable, "-m", "kvfuzz.cli.main", *map(str, words), "--json", str(result)]
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    result.unlink(missing_ok=True)
    try:
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "timed out"}
    if ended.returncode in (0, 1, 3) and result.exists():
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found
    lines = (ended.stderr or ended.stdout).strip().splitlines()
    return {"verdict": "error", "problems": lines[-1:]}


def program(hunt: Mapping[str, Any]) -> str:
    """The program of what a hunt found, the settings that it drew, and the law if it is another."""
    if not hunt.get("found"):
        return ""
    case = hunt["found"]["case"]
    schedule = schedule_text([entry_from_json(entry) for entry in case["schedule"]])
    drawn = [str(case["config"][word]) for word in ("attn", "cache") if word in case["config"]]
    law = hunt["found"]["verdict"].get("law", "agreement")
    drawn += [*case.get("given", []), *([law] if law != "agreement" else [])]
    return " ".join([f"{len(case['tokens'])} x {schedule}", *drawn])


def table(found: list[Exhibit]) -> Table:
    columns = ("bug", "fault", "buggy release", "program", "cases", "replay", "hunt there", "s")
    made = Table(*columns, box=box.SIMPLE_HEAD, title="The museum")
    for exhibit in found:
        made.add_row(
            exhibit.slug,
            exhibit.fault,
            f"{exhibit.buggy}: {exhibit.verdict}",
            exhibit.program.replace("[", r"\["),
            str(exhibit.cases or ""),
            f"{exhibit.fixed}: {exhibit.replay}" if exhibit.fixed else "never fixed",
            exhibit.fixed_verdict or "",
            f"{exhibit.seconds:.0f}",
            style=None if exhibit.seen else "bold",
        )
    return made


def matched(first: Mapping[str, Any], cause: Mapping[str, Any]) -> str:
    """What the first state that differs is to the root cause: `root` if it is made in its file and
    function, `reached` in one that its values reach first, `file` elsewhere in its file, or
    `elsewhere`."""
    if _made_in(first, cause):
        return "root"
    if any(_made_in(first, other) for other in cause["reached"]):
        return "reached"
    return "file" if first["file"] == cause["file"] else "elsewhere"


def _made_in(first: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether it, or the call that led to it, is in the file and a function of `root`, or in one
    inside that. A name that comes without its class is compared without."""
    caller = first.get("caller")
    if caller and _made_in(caller, root):
        return True
    if first["file"] != root["file"]:
        return False
    path = (first.get("function") or "").replace(".<locals>", "")
    names = root["functions"]
    if "." not in path:
        names = [name.rpartition(".")[2] for name in names]
    return any(f".{name}." in f".{path}." for name in names)


def places(found: list[Exhibit]) -> Table:
    """What was located beside the root causes."""
    columns = ("bug", "located", "cause", "suspect", "root cause", "is", "path at fault")
    made = Table(*columns, box=box.SIMPLE_HEAD, title="Where they are")
    for exhibit in found:
        if exhibit.slug not in ROOT_CAUSES:
            continue
        root, located = ROOT_CAUSES[exhibit.slug], exhibit.located or {}
        first = located.get("first") or {}
        made.add_row(
            exhibit.slug,
            f"{first.get('file')}:{first.get('line')} {first.get('function')}" if first else "",
            str(located.get("cause") or ""),
            str(located.get("suspect") or ""),
            f"{root['file']} {', '.join(root['functions'])}",
            exhibit.place,
            root["suspect"],
            style=None if exhibit.place in ("root", "reached") else "bold",
        )
    return made


def remarks(found: list[Exhibit]) -> Iterator[str]:
    """The count, what is not seen and why, and what diverges on the fixed releases besides."""
    yield f"{sum(exhibit.seen for exhibit in found)} of {len(found)} seen"
    for exhibit in found:
        if not exhibit.seen:
            yield f"not seen: {exhibit.slug} ({exhibit.verdict}, replay {exhibit.replay})"
        if exhibit.located and exhibit.place not in ("root", "reached"):
            why = ROOT_CAUSES[exhibit.slug].get("why_not", "no reason is known")
            yield f"located elsewhere: {exhibit.slug}: {why}"
        for note in exhibit.notes:
            yield f"  {exhibit.slug}: {note}"
        if exhibit.fixed_verdict == "diverged":
            yield f"still diverges: {exhibit.slug} on {exhibit.fixed}: {exhibit.fixed_program}"


if __name__ == "__main__":
    main()
