"""The errors of kvfuzz, the exit code of each, and helpers that word them."""

from __future__ import annotations

from collections.abc import Iterable


class KvfuzzError(Exception):
    """An error whose message is one line: what was wrong, and what to do."""

    exit_code = 2


class UsageError(KvfuzzError):
    """An option or argument is wrong."""


class InvalidCase(KvfuzzError):
    """A case makes no sense, or does not fit the subject."""


class InvalidSubject(KvfuzzError):
    """A subject cannot be found, imported or built, or breaks the protocol."""


class InvalidCounterexample(KvfuzzError):
    """A counterexample file cannot be read."""


class Diverges(KvfuzzError):
    """A subject diverges that should agree."""

    exit_code = 1


class Inconclusive(KvfuzzError):
    """Nothing was compared, so there is no verdict."""

    exit_code = 3


LONGEST_LINE = 1000
"""Longest message, in characters: an error may quote a whole tensor."""


def one_line(error: BaseException) -> str:
    """Returns `Type: message` of `error`, in one line that fits a report."""
    head = message_of(error)
    return f"{type(error).__name__}: {head}" if head else type(error).__name__


def message_of(error: BaseException) -> str:
    """Returns the message of `error`, in one line that fits a report; empty if it has none. `error`
    may come from any library, and its `str` may raise: then the message is empty too."""
    try:
        return printable(str(error))
    except Exception:
        return ""


def printable(text: str) -> str:
    """Returns the first line of `text`, cut to LONGEST_LINE characters and encodable as UTF-8."""
    lines = text.strip().splitlines() or [""]
    cut = lines[0] if len(lines[0]) <= LONGEST_LINE else f"{lines[0][: LONGEST_LINE - 3]}..."
    return cut.encode("utf-8", "backslashreplace").decode()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean ...?)` with the known words close to `word`; empty if none is."""
    import difflib  # only here, since most command lines have no wrong word

    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
