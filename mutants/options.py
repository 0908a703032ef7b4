"""Options of `kvfuzz score` that say how a campaign is run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvfuzz.options import Shard


def campaign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--mutant-calls --mutant-time --mutant-memory (the command's `limits`), --shard, --journal and
    --resume."""

    @functools.wraps(command)
    def with_limits(
        *args: Any, mutant_calls: int, mutant_time: float, mutant_memory: int, **kwargs: Any
    ) -> Any:
        from mutants.campaign import Limits

        return command(*args, limits=Limits(mutant_calls, mutant_time, mutant_memory), **kwargs)

    for option in (
        click.option(
            "--resume", is_flag=True,
            help="Go on with the campaign in the journal: judge only what it has not finished.",
        ),
        click.option(
            "--journal", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="Where what is finished is kept (default: score.sqlite in the folder).",
        ),
        click.option("--shard", type=Shard(), help="Judge the Kth of N parts; see `kvfuzz merge`."),
        click.option(
            "--mutant-memory", type=click.IntRange(min=1), default=4096, show_default=True,
            metavar="MB", help="A mutant that takes more memory than this has crashed.",
        ),
        click.option(
            "--mutant-time", type=click.FloatRange(min=0, min_open=True), default=60.0,
            show_default=True, metavar="SECONDS", help="A mutant that takes longer is timed out.",
        ),
        click.option(
            "--mutant-calls", type=click.IntRange(min=1), default=10_000, show_default=True,
            metavar="N", help="A mutant that is not killed in N forward calls is timed out.",
        ),
    ):  # fmt: skip
        with_limits = option(with_limits)
    return with_limits
