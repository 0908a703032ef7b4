"""The models of the benchmark: copies of transformers' files, and decoders of its own."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.generated.draw import Fault, Site, lines_run, sites_in
from benchmarks.generated.when import told
from kvfuzz.subjects.loading import as_factory
from kvfuzz.subjects.protocol import Factory
from tests.quality.injected.copies import Copy, copied
from tests.quality.injected.subjects import factory_of

LIBRARY = (
    "bloom", "codegen", "cohere", "deepseek_v3", "falcon", "falcon_h1", "glm", "gpt2",
    "gpt_bigcode", "gpt_neox", "gptj", "granite", "lfm2", "llama", "mistral", "mpt", "olmo2",
    "opt", "persimmon", "phi", "qwen2", "qwen3", "stablelm", "starcoder2",
)  # fmt: skip
"""Models of transformers, whose files are copied with those of its caches and masks."""
UNPADDED = ("falcon_h1", "lfm2")
"""Those that are wrong on padded rows without any fault: these are not drawn."""
DECODERS = Path(__file__).parent / "decoders"
OWN = sorted(path.stem for path in DECODERS.glob("[a-z]*.py"))
MODELS = (*LIBRARY, *OWN)


class Model:
    """One of MODELS: its `copy` without a fault below the folder `root`, and its `sites`."""

    def __init__(self, name: str, root: Path, attn: str = "eager") -> None:
        self.name, self._root, self._attn = name, root, attn
        self.copy = self.copied(f"clean_{name}")
        self.factory = self.made(self.copy)
        files = [path for path in self.copy.folder.glob("*.py") if path.stem != "__init__"]
        self.sources = {path.stem: self._source(path) for path in files}
        lines = lines_run(self.factory, self.copy.folder)
        self.sites: list[Site] = [
            site
            for file, source in sorted(self.sources.items())
            for site in sites_in(file, source, lines)
        ]

    def _source(self, path: Path) -> str:
        """Returns the text that a fault is put into: that of the library before its imports are
        made absolute, whose lines are the same."""
        if self.name in OWN:
            return path.read_text(encoding="utf-8")
        from tests.quality.injected.copies import library_file

        return library_file(path.stem.removeprefix("modeling_")).read_text(encoding="utf-8")

    def copied(self, package: str, faults: Sequence[Fault] = ()) -> Copy:
        """Returns an imported copy with `faults`."""
        if self.name in OWN:
            return _copied_decoder(self.name, package, self._root, faults)
        return copied(self.name, package, self._root, faults)

    def made(self, copy: Copy) -> Factory:
        """Returns the factory of subjects that run the code of `copy`, and say what they run."""
        if self.name in OWN:
            factory = as_factory(copy.model.Decoder)
        else:
            factory = factory_of(copy, self.name, self._attn, "dynamic")

        def build(seed: int, dtype: str, config: Mapping[str, Any]) -> Any:
            return _telling(factory.build(seed, dtype, config), self.name in UNPADDED)

        return replace(factory, build=build)


def _telling(subject: Any, unpadded: bool) -> Any:
    """Returns `subject`, whose calls first tell `when` what they are given."""
    inner = getattr(subject, "subject", subject)
    length = getattr(inner, "length", None) or (lambda cache: cache.slots)
    cached = told(subject.cached, length)
    if unpadded:
        signature = inspect.signature(subject.cached)
        kept = [p for p in signature.parameters.values() if p.name != "mask"]
        cached.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    subject.cached, subject.uncached = cached, told(subject.uncached, None)
    return subject


def _copied_decoder(name: str, package: str, root: Path, faults: Sequence[Fault]) -> Copy:
    folder = root / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    text = (DECODERS / f"{name}.py").read_text(encoding="utf-8")
    numbers = []
    for fault in faults:
        text, number = fault.applied(text)
        numbers.append((name, number))
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    module = importlib.import_module(f"{package}.{name}")
    return Copy(module, module, folder, frozenset(numbers))
