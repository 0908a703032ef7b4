"""Describes the environment that a result was seen in."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import hypothesis
import torch

from kvfuzz._version import __version__


def environment_of(device: str) -> dict[str, Any]:
    """Returns what a result on `device` depends on: versions (Hypothesis turns seeds into cases),
    the thread count (it changes how sums are grouped, and so rounding), the device, and the
    instruction set or chip that computes."""
    return {
        "kvfuzz": __version__,
        "torch": str(torch.__version__),
        "hypothesis": hypothesis.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": device,
        "backend": _backend(device),
    }


def _backend(device: str) -> str:
    """Names the kernels of `device`: each groups sums, and so rounds, in its own way."""
    kind = torch.device(device).type
    if kind == "cuda":
        tf32 = "with TF32" if torch.backends.cuda.matmul.allow_tf32 else "without TF32"
        return f"{torch.cuda.get_device_name(device)}, {tf32}"
    if kind == "cpu":
        return f"{torch.backends.cpu.get_cpu_capability()}, {_processor()}"
    return kind


def _processor() -> str:
    """Names the maker of the processor: MKL chooses other kernels for an AMD than for an Intel with
    the same instruction set, and clean cases of one seed then round differently."""
    cpuinfo = Path("/proc/cpuinfo")
    found = (
        re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo.read_text(), re.M)
        if cpuinfo.exists()
        else None
    )
    return found[1] if found else platform.processor() or platform.machine()
