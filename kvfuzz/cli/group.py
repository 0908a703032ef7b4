"""The group of commands, to which installed packages may add their own."""

from __future__ import annotations

import click

from kvfuzz.cli.entry_points import entry_points, load
from kvfuzz.errors import UsageError, did_you_mean, one_line

GROUP = "kvfuzz.commands"


class Commands(click.Group):
    """A click group that also has the commands of the entry point group `kvfuzz.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_offered(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns None for an unknown command, and for one that does not load: a broken package
        must not disable the other commands."""
        try:
            return self._loaded(ctx, cmd_name)
        except UsageError:
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name in self.list_commands(ctx):
            try:
                self._loaded(ctx, name)
            except UsageError as error:
                click.echo(f"kvfuzz: {error}", err=True)
        super().format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self._loaded(ctx, name) is None:
            known = self.list_commands(ctx)
            hint = did_you_mean(name, known) or f": choose from {', '.join(known)}"
            raise UsageError(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def _loaded(self, ctx: click.Context, name: str) -> click.Command | None:
        """Returns the command, None if it is unknown. Raises UsageError if it does not load."""
        command = super().get_command(ctx, name)
        if command is not None or name not in _offered(ctx):
            return command
        value = _offered(ctx)[name]
        try:
            loaded = load(value)
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the command {name!r} ({value}) does not load: {one_line(error)}"
            ) from error
        if not isinstance(loaded, click.Command):
            kind = type(loaded).__name__
            raise UsageError(f"the command {name!r} ({value}) is not a click command but a {kind}")
        return loaded


def _offered(ctx: click.Context) -> dict[str, str]:
    """Returns the commands of other packages, which are looked for once in a command line."""
    if GROUP not in ctx.meta:
        ctx.meta[GROUP] = entry_points(GROUP)
    return dict(ctx.meta[GROUP])
