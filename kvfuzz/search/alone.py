"""Checks that a counterexample diverges by itself: in a fresh process, with nothing run before it.

A memo at the level of a module outlives the cases of a hunt. A case may then diverge only because
of what an earlier one has left there, and replaying it alone would agree.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvfuzz.case.case import Case
from kvfuzz.case.counterexample import BEFORE, Counterexample
from kvfuzz.search.replay import replay

AGREES = 17
"""The exit code of a fresh process in which the case does not diverge."""
SECONDS = 120.0
"""A replay may take so long."""


def with_what_ran_before(
    found: Counterexample, history: Sequence[Case]
) -> tuple[Counterexample, str | None]:
    """Returns `found` with the cases of `history` that it needs to diverge in a fresh process, and
    a note about them; as it is, without a note, if it needs none.

    Tries the case that ran just before, the first one, and all of them.
    """
    if _diverges(found):
        return found, None
    for before in _tries(history):
        tried = with_before(found, before)
        if _diverges(tried):
            cases = "the case" if len(before) == 1 else f"the {len(before)} cases"
            note = (
                f"in a fresh process it diverges only after {cases} that the file has as `before`"
            )
            return tried, note
    return found, "it does not diverge in a fresh process: something that ran before it matters"


def with_before(found: Counterexample, before: Sequence[Case]) -> Counterexample:
    """Returns `found` with the cases to run `before` it."""
    kept = {**found.environment, BEFORE: [case.to_json() for case in before]}
    return replace(found, environment=kept)


def _tries(history: Sequence[Case]) -> Iterator[tuple[Case, ...]]:
    if history:
        yield (history[-1],)
    if len(history) > 1:
        yield (history[0],)
        yield tuple(history)


def _diverges(found: Counterexample) -> bool:
    """Whether the counterexample diverges in a fresh process. One that cannot be run there counts
    as if it did: nothing is known against it."""
    with tempfile.TemporaryDirectory() as folder:
        path = found.save(Path(folder))
        command = [sys.executable, "-m", __name__, str(path)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return True
        return done.returncode != AGREES


if __name__ == "__main__":
    verdict = replay(sys.argv[1]).verdict
    sys.exit(AGREES if verdict is not None and not verdict.diverged else 0)
