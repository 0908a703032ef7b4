"""A runner for the example workflows: the few things of GitHub Actions that they use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SHAPES = ROOT / "docs" / "ci"
IGNORED = ("actions/checkout", "actions/setup-python")
ALONE = """#!{python}
import os
import sys

from kvfuzz.cli.main import main

os.cpu_count = lambda: 1
if __name__ == "__main__":
    sys.exit(main())
"""
"""The command on a machine of one core, where `-n auto` starts the fewest processes: each costs
seconds."""


@dataclass
class Ran:
    """What one job did: the exit code of each of its commands by the step's name, all it printed,
    and the summary of its last step."""

    job: str
    codes: dict[str, int] = field(default_factory=dict)
    output: str = ""
    summary: str = ""


def workflow(name: str) -> dict[str, Any]:
    """The workflow as YAML has it; YAML 1.1 reads its key `on` as true."""
    parsed: dict[str, Any] = yaml.safe_load((SHAPES / name).read_text())
    return parsed


def run_workflow(flow: dict[str, Any], folder: Path, files: dict[str, Path], env: dict[str, str]):
    """Run every job of `flow` in `folder`, in order, each combination of its matrix by itself; each
    begins with `files`, by the name that the checkout has them under. `env` wins over what the
    workflow states: sizes. Steps called `install` are left out."""
    artifacts = folder / "artifacts"
    for job, told in flow["jobs"].items():
        matrix = told.get("strategy", {}).get("matrix", {"": [""]})
        ((key, values),) = matrix.items()
        for value in values:
            where = folder / f"{job}{value}"
            known = {f"matrix.{key}": value, "strategy.job-total": len(values), "github.run_id": 7}
            for name, source in files.items():
                copy_into(source, where / name)
            yield run_job(job, told, where, artifacts, known, {**flow.get("env", {}), **env})


def run_job(job, told, where: Path, artifacts: Path, known, env) -> Ran:
    """A step runs if none has failed before it, or if it asks to run `always()`."""
    where.mkdir(parents=True, exist_ok=True)
    ran = Ran(job)
    for step in told["steps"]:
        if any(ran.codes.values()) and step.get("if") != "always()":
            continue
        if "uses" in step:
            use(step, where, artifacts, known)
        elif step["name"] != "install":
            run_step(step, where, ran, known, env)
    return ran


def run_step(step, where: Path, ran: Ran, known, env) -> None:
    summary, command = where / "summary.md", where / "bin" / "kvfuzz"
    command.parent.mkdir(exist_ok=True)
    command.write_text(ALONE.format(python=sys.executable))
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-c", filled(step["run"], known)],
        cwd=where,
        env={
            **os.environ,
            **env,
            "PATH": os.pathsep.join(
                [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    ran.codes[step["name"]] = done.returncode
    ran.output += done.stdout + done.stderr
    ran.summary = summary.read_text() if summary.exists() else ""


def use(step, where: Path, artifacts: Path, known) -> None:
    """Keep or fetch artifacts; nothing for what a test has already: the code and Python."""
    action, options = step["uses"].partition("@")[0], step.get("with", {})
    if action == "actions/upload-artifact":
        kept = artifacts / filled(options["name"], known)
        for pattern in filled(options["path"], known).split():
            for file in where.glob(pattern):
                copy_into(file, kept / file.relative_to(where))
    elif action == "actions/download-artifact":
        into = where / options.get("path", ".")
        for kept in sorted(artifacts.glob(options["pattern"])):
            copy_into(kept, into if options.get("merge-multiple") else into / kept.name)
    else:
        assert action in IGNORED, f"the test does not know {action}"


def filled(text: str, known) -> str:
    """`text` with its expressions replaced; a KeyError for one that the test does not know."""
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: str(known[found[1]]), text)


def copy_into(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
