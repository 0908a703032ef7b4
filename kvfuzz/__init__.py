"""kvfuzz proves that a language model's KV cache is right.

A decoder that is fed through its cache must give the logits that it gives without one. `check`
judges one case, `fuzz` hunts for a case that diverges, `assert_agrees` does so in a test, and
`load` finds a subject by name.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any


def _read_homes() -> dict[str, str]:
    """Returns the module of each public name, from the imports in `__init__.pyi`."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _read_homes()
__all__ = [*_HOMES]  # noqa: PLE0604


# A name is imported at its first use, so that `import kvfuzz` loads neither torch nor Hypothesis.
def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvfuzz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
