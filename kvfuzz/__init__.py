"""kvfuzz proves that a language model's KV cache is right.

A decoder that is fed through its cache must give the logits that it gives without one. `check`
judges one case, `fuzz` hunts for a case that diverges, `assert_agrees` does so in a test, and
`load` finds a subject by name.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def _homes() -> dict[str, str]:
    """Returns the module of each public name, from the imports in `__init__.pyi`."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


# A name is imported at its first use, so that `import kvfuzz` loads neither torch nor Hypothesis,
# and the command line, which uses none, does not read the stub.
def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_homes()]
    if name not in _homes():
        raise AttributeError(f"module 'kvfuzz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
