"""Errors that kvfuzz raises, the exit code each ends a command with, and their wording."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvfuzzError(Exception):
    """An error whose message is one line: what was seen, and the way out."""

    exit_code = 2


class UsageError(KvfuzzError):
    """An option or argument that cannot be honoured."""


class InvalidCase(KvfuzzError):
    """A case that does not describe an experiment on this subject."""


class InvalidSubject(KvfuzzError):
    """A subject that cannot be found, imported or built, or that breaks the protocol."""


class InvalidCounterexample(KvfuzzError):
    """A counterexample file that cannot be read."""


class Diverges(KvfuzzError):
    """A subject that should be right, and is not."""

    exit_code = 1


class Inconclusive(KvfuzzError):
    """Nothing was compared, so there is no verdict to give."""

    exit_code = 3


LONGEST_LINE = 1000
"""Letters of a message that are kept: an error may quote a whole tensor."""


def one_line(error: BaseException) -> str:
    """`error` as `Type: message`, in one line that fits a report."""
    head = message_of(error)
    return f"{type(error).__name__}: {head}" if head else type(error).__name__


def message_of(error: BaseException) -> str:
    """The message of `error`, in one line that fits a report; empty if it has none, or one that
    cannot be told: the error is somebody else's, and telling it may raise as well."""
    try:
        return printable(str(error))
    except Exception:
        return ""


def printable(text: str) -> str:
    """The first line of `text`, at most LONGEST_LINE letters of it, which any file can hold."""
    lines = text.strip().splitlines() or [""]
    cut = lines[0] if len(lines[0]) <= LONGEST_LINE else f"{lines[0][: LONGEST_LINE - 3]}..."
    return cut.encode("utf-8", "backslashreplace").decode()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` for the known words close to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
