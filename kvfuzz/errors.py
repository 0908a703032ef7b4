"""What kvfuzz refuses, and the exit code that each refusal ends a command with."""


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


def one_line(error: BaseException) -> str:
    """`error` as `Type: message`, cut to its first line so that it fits a report."""
    text = str(error).strip()
    head = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {head}" if head else type(error).__name__
