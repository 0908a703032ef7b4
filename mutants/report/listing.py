"""The source of a fault beside the real code that it replaces."""

from __future__ import annotations

import inspect
import io
import keyword
import pkgutil
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from mutants.mutant import Mutant

MUTED = {tokenize.COMMENT, tokenize.STRING}


@dataclass(frozen=True)
class Listing:
    """A function as its author wrote it, under its name; `code` is HTML."""

    name: str
    line: int | None
    code: Markup


def fault_listing(mutant: Mutant) -> Listing:
    """The lines that make the fault."""
    return _listing(f"{mutant.fault.__module__}:{mutant.fault.__name__}", mutant.fault)


def real_listings(mutant: Mutant) -> list[Listing]:
    """The stages that `mutant` replaces, as they are without it."""
    return [_listing(target, _resolved(target)) for target in mutant.targets]


def highlighted(source: str) -> Markup:
    """`source` as HTML: keywords, and comments and strings, in spans; all else as it is."""
    lines = source.splitlines(keepends=True)
    done, row, column = Markup(""), 1, 0
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return escape(source)
    for token in tokens:
        style = _style(token)
        if style:
            done += escape(_between(lines, (row, column), token.start))
            done += Markup('<span class="{}">{}</span>').format(style, token.string)
            row, column = token.end
    return done + escape(_between(lines, (row, column), (len(lines) + 1, 0)))


def _style(token: tokenize.TokenInfo) -> str | None:
    if token.type in MUTED:
        return "muted"
    return "keyword" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else None


def _between(lines: list[str], start: tuple[int, int], stop: tuple[int, int]) -> str:
    """The text from `start` to `stop`, each a line from 1 and a column."""
    if start[0] == stop[0]:
        return lines[start[0] - 1][start[1] : stop[1]]
    kept = lines[start[0] - 1 : stop[0]]
    last = kept.pop()[: stop[1]] if len(kept) == stop[0] - start[0] + 1 else ""
    return "".join(kept)[start[1] :] + last


def _resolved(target: str) -> Callable[..., Any] | None:
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if callable(found) else None


def _listing(name: str, function: Callable[..., Any] | None) -> Listing:
    """A function that is compiled, or gone, is listed without its code."""
    try:
        if function is None:
            raise OSError
        lines, start = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return Listing(name, None, Markup("<em>its source is not at hand</em>"))
    source = textwrap.dedent("".join(lines)).rstrip("\n")
    return Listing(name, start, highlighted(source))
