"""Goes on shrinking the counterexample in a file, and writes it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import Counterexample, make_counterexample, read
from kvfuzz.case.files import check_writable, write_json
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, UsageError
from kvfuzz.search.judge import judge_by
from kvfuzz.search.replay import Replayed, load_for, options_of, replay
from kvfuzz.search.shrink import Bound, Shrunk, judge_like, shrink
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory


@dataclass(frozen=True)
class ShrunkFile:
    """The outcome of shrinking a counterexample file: the case `before`, what it was `shrunk` to
    (None if it does not diverge any more), and the result of running it again."""

    before: Case
    shrunk: Shrunk | None
    replayed: Replayed


def shrink_file(
    path: Path,
    *,
    subject: str | None = None,
    device: str | None = None,
    bound: Bound | None = None,
    announce: Callable[[Counterexample, str], None] | None = None,
) -> ShrunkFile:
    """Shrinks the counterexample at `path` within `bound`, on the subject that it names or on
    `subject`, and writes it back, whole, with its location.

    Ctrl-C ends the shrinking: the smallest case so far is written, without a location. Calls
    `announce` before the subject is imported. Raises KvfuzzError if the run is not possible.
    """
    check_writable(path)
    found = read(path)
    name = subject or found.subject
    if announce is not None:
        announce(found, name)
    try:
        return _shrink(path, found, name, options_of(found, device), bound)
    except KvfuzzError as error:
        raise UsageError(f"{path}: {error}") from error


def _shrink(
    path: Path, found: Counterexample, name: str, options: Options, bound: Bound | None
) -> ShrunkFile:
    factory, case, verdict = _run(found, name, options)
    device, twin = options.device, options.twin
    if not verdict.diverged:
        return ShrunkFile(case, None, Replayed(path, found, name, verdict))
    judged = partial(judge_like, verdict, factory)
    space = space_of(factory)
    before = found.tried if name == found.subject else []
    shrunk = shrink(case, verdict, judged, space, bound, (KeyboardInterrupt,), before)
    smaller = make_counterexample(name, shrunk.case, shrunk.verdict, None, device, twin)
    if not shrunk.done:
        smaller = smaller.unfinished(shrunk.tried)
    changed = shrunk.case != found.case
    if changed or (smaller.is_minimal, smaller.tried) != (found.is_minimal, found.tried):
        # Before it is located, which may be interrupted again.
        located = None if changed else found.located
        write_json(path, replace(smaller, located=located).to_json())
    if shrunk.interrupted:
        return ShrunkFile(case, shrunk, Replayed(path, smaller, name, shrunk.verdict))
    again = replay(path, device=device)
    location = again.explanation.location if again.explanation else None
    if changed and location is not None:
        write_json(path, replace(smaller, located=location.summary()).to_json())
    return ShrunkFile(case, shrunk, again)


def _run(found: Counterexample, name: str, options: Options) -> tuple[Factory, Case, Verdict]:
    """Runs the counterexample with a factory that may draw other settings; with the recorded ones
    fixed, if it does not diverge there."""
    law = str(found.verdict.get("law", "agreement"))
    with suppress(KvfuzzError):
        factory = load(name, options)
        verdict = judge_by(law, factory.subject(found.case), found.case, factory.name)
        if verdict.diverged:
            return factory, found.case, verdict
    factory, case = load_for(name, options, found.case, another=name != found.subject)
    return factory, case, judge_by(law, factory.subject(case), case, factory.name)
