"""Settings under `[tool.kvfuzz]` in pyproject.toml.

Keys are the long options with or without dashes (`examples = 500`, `time = 60`). Those at the top
hold for every command that has them; `[tool.kvfuzz.fuzz]` holds for `fuzz` alone.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from kvfuzz.errors import UsageError
from kvfuzz.near import near


def default_map(group: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Click's defaults for each command of `group`, from the pyproject.toml in `folder`.

    Raises UsageError for a file that is not TOML and for a key that no command has.
    """
    table = _table(folder / "pyproject.toml")
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    options = {
        name: {_key(parameter): parameter.name for parameter in command.params if _key(parameter)}
        for name, command in commands.items()
        if command is not None
    }
    everywhere = {key: value for key, value in table.items() if not isinstance(value, dict)}
    everywhere = {_dashed(key): value for key, value in everywhere.items()}
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    _refuse_unknown(
        "[tool.kvfuzz]", everywhere, {key for known in options.values() for key in known}
    )
    _refuse_unknown("[tool.kvfuzz]", tables, options)
    defaults: dict[str, dict[str, Any]] = {}
    for name, known in options.items():
        own = {_dashed(key): value for key, value in tables.get(name, {}).items()}
        _refuse_unknown(f"[tool.kvfuzz.{name}]", own, known)
        merged = {**everywhere, **own}
        defaults[name] = {str(known[key]): merged[key] for key in merged if key in known}
    return defaults


def _table(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    table = data.get("tool", {}).get("kvfuzz", {})
    if not isinstance(table, dict):
        raise UsageError(f"[tool.kvfuzz] in {path} should be a table, got {table!r}")
    return table


def _key(parameter: click.Parameter) -> str:
    """The long option of `parameter` without its dashes; empty for an argument."""
    if not isinstance(parameter, click.Option):
        return ""
    longest = max(parameter.opts, key=len)
    return longest.lstrip("-")


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _refuse_unknown(place: str, given: dict[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise UsageError(f"{place} in pyproject.toml has no setting {key!r}{near(key, known)}")
