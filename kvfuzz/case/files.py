"""Reads JSON, and writes files whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from kvfuzz.errors import UsageError, one_line


def check_writable(path: Path) -> None:
    """Raises UsageError if `path` cannot be written, before the work whose result it will hold.
    Leaves nothing behind."""
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a directory; name a file")
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = _target(path).parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def name_in_folder(subject: str) -> str:
    """Returns a file name for data about `subject`, whose name may hold any character."""
    return hashlib.sha256(subject.encode()).hexdigest()[:8]


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path`; a reader sees the old file or the complete new one.

    Makes missing folders; replaces the target of a link, not the link; writes into a pipe or a
    device. Raises UsageError if that fails.
    """
    try:
        if _is_special(path):
            # As named: /dev/stdout resolves to a name under /proc that cannot be opened.
            with path.open("w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace(_target(path), text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _replace(path: Path, text: str) -> None:
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


def _is_special(path: Path) -> bool:
    """Whether `path` is neither a file nor a folder, but a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _target(path: Path) -> Path:
    """Follows the links of `path`. Raises OSError for links in a circle."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def read_json(path: Path, option: str = "") -> Any:
    """Reads the JSON file at `path`, which `option` of the command line named. Raises UsageError
    for a file that cannot be read or is not JSON."""
    name = f"{option} {path}".strip()
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {one_line(error)}") from None


def write_json(path: Path, data: Any) -> None:
    """Writes `data` as JSON; see `to_json_text`."""
    write_text(path, to_json_text(data))


def to_json_text(data: Any) -> str:
    """Writes `data` as strict JSON; numbers that are not finite become "inf", "-inf" or "nan"."""
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
