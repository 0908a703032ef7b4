"""Says where a benchmark ran: versions, processor and load."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "hypothesis", "transformers", "mutmut")
ABSENT = "not installed"


def environment() -> dict[str, str]:
    """Returns the versions, the commit of kvfuzz, the processor and the load of the last minute."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "kvfuzz": _commit(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "load": load(),
    }


def load() -> str:
    """Returns the load of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def _commit() -> str:
    """Returns the commit, with `+` if files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
