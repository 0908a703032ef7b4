"""The memory that a hunt needs, as a multiple of the weights of the model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.plain_decoder import PlainDecoder, WideDecoder
from benchmarks.row import Measurement, NotRun
from benchmarks.timing import ROOT, command_seconds

MEGABYTE = 1e6
ALLOWED = 300.0
"""The megabytes that are allowed besides four times the weights."""
PEAK = """
import re, sys
{code}
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print("PEAK", int(peak) * 1024)
"""
"""What a child process runs. The system keeps the peak of each process; that of `getrusage` would
count what the process was before it began to run Python."""
HUNT = """
from kvfuzz.cli.main import main
if main(sys.argv[1:]): sys.exit("the hunt did not agree")
"""
IMPORTS = "import kvfuzz.search.hunt, kvfuzz.report.text"
LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
}
"""The settings of a llama of 200 MB."""


def plain_peak(wide: bool, repeats: int) -> Measurement:
    """The peak of `kvfuzz fuzz` on a plain decoder with weights of 200 MB, or on the tiny one."""
    decoder = WideDecoder if wide else PlainDecoder
    size = sum(weight.nbytes for weight in decoder().parameters())
    subject = f"{ROOT / 'benchmarks' / 'plain_decoder.py'}:{decoder.__name__}"
    return _peaks(subject, size, IMPORTS, repeats)


def checkpoint_peak(repeats: int) -> Measurement:
    """The peak of `kvfuzz fuzz` on a llama of 200 MB, saved as a checkpoint of transformers."""
    if find_spec("transformers") is None:
        raise NotRun("transformers is not installed")
    from transformers import LlamaConfig, LlamaForCausalLM

    with TemporaryDirectory() as folder:
        model = LlamaForCausalLM(LlamaConfig(**LLAMA))
        model.save_pretrained(folder)
        imports = f"{IMPORTS}\nfrom transformers import LlamaForCausalLM"
        size = sum(weight.nbytes for weight in model.parameters())
        return _peaks(f"transformers:{folder}", size, imports, repeats)


def _peaks(subject: str, size: int, imports: str, repeats: int) -> Measurement:
    """Compares the peak of a hunt, less that of its imports, with 4 N + 300 MB."""
    if not Path("/proc/self/status").exists():
        raise NotRun("the system does not tell the peak of a process")
    allowed = 4 * size / MEGABYTE + ALLOWED
    base = _peak(imports, ())
    words = ("fuzz", subject, "--examples", "12", "--seed", "0")
    found = [_peak(HUNT, words) - base for _ in range(repeats)]
    evidence = (
        f"{size / MEGABYTE:.1f} MB of weights, at most {max(found):.0f} MB beyond the "
        f"{base:.0f} MB of the imports; agreed"
    )
    return Measurement(tuple((peak, allowed) for peak in found), evidence)


def _peak(code: str, words: Sequence[str]) -> float:
    """Returns the peak of a child process that runs `code`, in megabytes."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PEAK.format(code=code), *words]
        _, printed = command_seconds(command, Path(folder))
    return int(printed.split("PEAK")[-1]) / MEGABYTE
