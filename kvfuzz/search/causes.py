"""Says which divergences have one cause, as far as that can be known: so a hunt that keeps going
tells a bug that it has seen in many cases from the next one.

A path that raises has the cause of the exception and the line that raised it. Any other divergence
has that of the line, the operation or the site where its case first diverges, if cases are located.
Where the line is unsure, an operation that proves to be guilty counts as well. Else all that is
known is the law, and the kind of the step that shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize.guilty_operation import find_guilty_operation
from kvfuzz.localize.operations.record import WatchedSubject
from kvfuzz.localize.operations.source_lines import line_at
from kvfuzz.search.explain import find_location
from kvfuzz.subjects.protocol import Factory
from kvfuzz.subjects.run import CachedPathRaised, run_cached, run_uncached, seeded

RAISES = "raises"
"""The kind of a cause that is loud: a path raises, as a design does that refuses a call."""
_VARYING = re.compile(r"( \(\w+\))|-?\d[\d.]*(e[-+]?\d+)?")
"""A kind of step in parentheses, or a number."""


@dataclass(frozen=True)
class Cause:
    """Common to divergences of one cause: the `law` that they break; their `kind`, that a
    path RAISES, loses precision (`rounds`) or `differs`; and one of the `places`, in words."""

    law: str
    kind: str
    places: tuple[str, ...]

    def is_like(self, other: Cause) -> bool:
        """Whether this is the same cause as the `other` one, as far as is known."""
        return (self.law, self.kind) == (other.law, other.kind) and not {*self.places}.isdisjoint(
            other.places
        )

    def joined(self, other: Cause) -> Cause:
        """Returns this cause, with what is known of it from the `other` one that is like it."""
        return replace(self, places=tuple(dict.fromkeys((*self.places, *other.places))))


def find_cause(factory: Factory, case: Case, verdict: Verdict, locating: bool = True) -> Cause:
    """Returns the cause of the diverged `verdict` on `case`. It is located only if `locating`, and
    not where a path raises: the states before that may be wrong for another cause."""
    if verdict.error is not None:
        return Cause(verdict.law, RAISES, (_where_it_raises(factory, case, verdict),))
    kind = "differs" if verdict.precision is None else "rounds"
    places = _where_it_begins(factory, case, verdict) if locating else ()
    return Cause(verdict.law, kind, places or (_step_kind(case, verdict),))


def _where_it_begins(factory: Factory, case: Case, verdict: Verdict) -> tuple[str, ...]:
    """Returns the line of the first divergence, or else its operation or its site; where that is
    unsure, also the operation on the cache that proves to be guilty. No layer: a fault of a line
    shows in the first layer that it reaches. Empty if it is not located."""
    location = find_location(factory, case, verdict, [])[0]
    first = location.first if location is not None else None
    if first is None:
        return ()
    place = str(first.source) if first.source else first.operation or first.site.kind
    unsure = first.source is None or bool(first.candidates)
    if not unsure or verdict.law != "agreement" or verdict.first is None:
        return (place,)
    guilty = find_guilty_operation(factory.subject(case), case, verdict.first.step)
    return (place,) if guilty is None else (place, guilty.method)


def _step_kind(case: Case, verdict: Verdict) -> str:
    """Returns the kind of the step that first shows the divergence; for a law that finds more, what
    breaks it, without its numbers and steps."""
    if verdict.finding is not None:
        return _VARYING.sub("#", verdict.finding)
    if verdict.error_step is not None:
        return list(case.steps())[verdict.error_step].kind
    return "anywhere" if verdict.first is None else verdict.first.kind


def _where_it_raises(factory: Factory, case: Case, verdict: Verdict) -> str:
    """Returns the class of the exception and the line of the subject that raised it; without such a
    line, the kind of step."""
    error, subject = None, None
    try:
        subject = factory.subject(case)
        with seeded(case.seed):
            if verdict.error_step is None:
                run_uncached(subject, layout(case).sequences)
            else:
                run_cached(subject, case)
    except CachedPathRaised as raised:
        error = raised.error
    except KvfuzzError:
        pass
    except Exception as raised:
        error = raised
    if error is None:
        return _step_kind(case, verdict)
    place = WatchedSubject(subject).code.raised_at(error)
    where = f"at {line_at(place)}" if place else f"in {_step_kind(case, verdict)}"
    return f"{type(error).__name__} {where}"
