"""The source code of a fault and of the real code that it replaces, as HTML."""

from __future__ import annotations

import inspect
import io
import keyword
import pkgutil
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
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
    """Source code of the fault."""
    return _listing(f"{mutant.fault.__module__}:{mutant.fault.__name__}", mutant.fault)


def real_listings(mutant: Mutant) -> list[Listing]:
    """Source code of the functions that `mutant` replaces."""
    return [_listing(target, _resolved(target)) for target in mutant.targets]


def highlighted(source: str) -> Markup:
    """Returns `source` as HTML, with keywords, comments and strings in spans."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return escape(source)
    begins = [0, *accumulate(map(len, io.StringIO(source)))]
    html, done = Markup(""), 0
    for token in tokens:
        style = _style(token)
        if style:
            start, stop = (begins[row - 1] + column for row, column in (token.start, token.end))
            span = Markup('<span class="{}">{}</span>').format(style, source[start:stop])
            html, done = html + escape(source[done:start]) + span, stop
    return html + escape(source[done:])


def _style(token: tokenize.TokenInfo) -> str | None:
    if token.type in MUTED:
        return "muted"
    return "keyword" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else None


def _resolved(target: str) -> Callable[..., Any] | None:
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if callable(found) else None


def _listing(name: str, function: Callable[..., Any] | None) -> Listing:
    """Lists a function; one that is compiled or gone, without its code."""
    try:
        if function is None:
            raise OSError
        lines, start = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return Listing(name, None, Markup("<em>source not available</em>"))
    source = textwrap.dedent("".join(lines)).rstrip("\n")
    return Listing(name, start, highlighted(source))
