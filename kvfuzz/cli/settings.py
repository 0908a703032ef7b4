"""Settings under `[tool.kvfuzz]` in pyproject.toml.

A key is the long name of an option, with dashes or underscores (`examples = 500`, `seconds = 60`).
Keys at the top apply to every command that has the option; `[tool.kvfuzz.fuzz]` applies to `fuzz`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from kvfuzz.cli.options import Renamed
from kvfuzz.errors import UsageError, did_you_mean


def default_map(group: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Returns click's `default_map` for the commands of `group`, from the pyproject.toml in
    `folder`.

    Raises UsageError for a file that is not TOML, for a key that is no option, and for a value that
    its option cannot take.
    """
    table = _table(folder / "pyproject.toml")
    if not table:
        return {}
    context = click.Context(group)
    names = group.list_commands(context)
    commands = {name: group.get_command(context, name) for name in names}
    # A command of another package that does not load is skipped: its options are unknown.
    options = {name: _options(command) for name, command in commands.items() if command}
    tables = {key: table.pop(key) for key in names if key in table}
    everywhere = {_dashed(key): value for key, value in table.items()}
    known = {key: option for each in options.values() for key, option in each.items()}
    _refuse_unknown("[tool.kvfuzz]", everywhere, known, names)
    defaults: dict[str, dict[str, Any]] = {}
    for name, own_options in options.items():
        place = f"[tool.kvfuzz.{name}]"
        own = {_dashed(key): value for key, value in _as_table(place, tables.get(name, {})).items()}
        _refuse_unknown(place, own, own_options)
        given = {
            **_as_words("[tool.kvfuzz]", everywhere, own_options),
            **_as_words(place, own, own_options),
        }
        defaults[name] = {str(own_options[key].name): value for key, value in given.items()}
    return defaults


def message_of(error: click.ClickException) -> str:
    """Returns the message of `error` in one line. If a setting caused it, the message names the
    setting and pyproject.toml."""
    message = " ".join(error.format_message().split())
    if not isinstance(error, click.BadParameter) or error.param is None or error.ctx is None:
        return message
    source = error.ctx.get_parameter_source(str(error.param.name))
    if source is not click.core.ParameterSource.DEFAULT_MAP:
        return message
    return f"setting {_key(error.param)!r} in pyproject.toml: {' '.join(error.message.split())}"


def _table(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import tomllib  # only here, since most folders have no such file

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    tool = _as_table("[tool]", data.get("tool", {}))
    return _as_table("[tool.kvfuzz]", tool.get("kvfuzz", {}))


def _as_table(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{place} in pyproject.toml should be a table, got {_toml(value)}")
    return value


def _options(command: click.Command) -> dict[str, click.Option]:
    """Returns the options of `command` by key. Former names come first, so that a present name in
    the same table overrides them."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    former = {each.former.lstrip("-"): each for each in options if isinstance(each, Renamed)}
    return {**former, **{_key(each): each for each in options}}


def _key(parameter: click.Parameter) -> str:
    """Returns the long name of `parameter` without its dashes."""
    return max(parameter.opts, key=len).lstrip("-")


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _refuse_unknown(
    place: str, given: dict[str, Any], known: dict[str, click.Option], others: Iterable[str] = ()
) -> None:
    other_names = {
        word.lstrip("-"): key
        for key, option in known.items()
        for word in (*option.opts, *option.secondary_opts)
    }
    for key in given:
        if key in known:
            continue
        meant = other_names.get(key)
        hint = f" (did you mean {meant}?)" if meant else did_you_mean(key, [*known, *others])
        raise UsageError(f"{place} in pyproject.toml has no setting {key!r}{hint}")


def _as_words(
    place: str, given: dict[str, Any], options: dict[str, click.Option]
) -> dict[str, Any]:
    """Returns those of `given` that `options` has, as the strings that a command line would have.

    click's types would accept wrong TOML types otherwise: true as 1, 2.5 as 2. Raises UsageError.
    """
    typed: dict[str, Any] = {}
    for key, option in options.items():
        if key not in given:
            continue
        value = given[key]
        values = value if option.multiple and isinstance(value, list) else [value]
        for each in values:
            if option.is_flag != isinstance(each, bool) or not isinstance(each, str | int | float):
                wanted = "true or false" if option.is_flag else "a number or a string"
                raise UsageError(
                    f"setting {key!r} of {place} in pyproject.toml should be {wanted}, "
                    f"got {_toml(each)}"
                )
        words = [each if option.is_flag else str(each) for each in values]
        typed[key] = words if option.multiple else words[0]
    return typed


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
