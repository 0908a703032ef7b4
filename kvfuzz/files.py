"""Write reports whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from kvfuzz.errors import UsageError


def check_writable(path: Path) -> None:
    """Refuse a report path that cannot be written, before the work whose result it would hold.

    Missing folders are made. Raises UsageError.
    """
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a directory; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, which a reader sees either as before or complete.

    Raises UsageError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(partial, 0o666 & ~_umask())
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON; see `to_json_text`."""
    write_text(path, to_json_text(data))


def to_json_text(data: Any) -> str:
    """`data` as strict JSON: numbers that are not finite become "inf", "-inf" or "nan"."""
    return json.dumps(_strict(data), indent=1, allow_nan=False) + "\n"


def _strict(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_strict(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    return data


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
