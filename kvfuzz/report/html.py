"""Writes a location as one self-contained HTML page: no network, no other file, no JavaScript.
Also makes the template environment that every HTML page uses."""

from __future__ import annotations

import math

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from kvfuzz.case.case import Case
from kvfuzz.case.features import family
from kvfuzz.case.schedule import schedule_text
from kvfuzz.localize.causes import ordinal
from kvfuzz.localize.location import Divergence, Location
from kvfuzz.report.map import difference_table, level_labels, times
from kvfuzz.report.words import by_step, number, settings, steps_in_words
from kvfuzz.subjects.trace import Site

SUSPECTS = {
    "cached": "the cached path",
    "uncached": "the uncached path",
    "unknown": "either path: it is not known which",
}

Fact = tuple[str, str]
"""A name and a value."""


def environment(*packages: str) -> Environment:
    """Returns the environment for the templates of `packages`, which may use the parts, the styles
    and the script that all pages share. Every value is escaped, and an unknown name raises."""
    folders = [PackageLoader(package, "") for package in (*packages, "kvfuzz.report")]
    made = Environment(
        loader=ChoiceLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, times=times)
    made.globals.update(
        by_step=by_step,
        family=family,
        levels=level_labels(),
        schedule_text=schedule_text,
        settings=settings,
        steps_in_words=steps_in_words,
    )
    return made


def location_page(location: Location, case: Case, subject: str, replay: str | None) -> str:
    """Returns `location`, of `case` on `subject`, as one HTML document. `replay` is the command
    that runs the case again. The same location gives the same page."""
    templates = environment()
    templates.filters["prose"] = lambda site: Site.parse(site).prose
    return templates.get_template("location.html.j2").render(
        location=location,
        first=location.first,
        headline=headline(location),
        where=place(location.first, case) if location.first else None,
        facts=facts(location.first) if location.first else [],
        suspect=SUSPECTS[location.suspect],
        map=difference_table(location.cells, case, location.first),
        case=case,
        subject=subject,
        replay=replay,
    )


def headline(location: Location) -> str:
    """Returns in one sentence what was found."""
    if location.first is not None:
        return f"The paths first differ at the {location.first.site.prose}."
    if location.latent:
        some = "a state differs" if len(location.latent) == 1 else "some states differ"
        return f"The logits agree, although {some}."
    if not location.cells:
        return "No state could be compared."
    return "No state differs by more than is allowed."


def place(first: Divergence, case: Case) -> str:
    """Returns the step, and the row, the position and the channel where there are any."""
    kinds = {step.index: f" ({step.kind})" for step in case.steps()}
    words = [f"step {first.step + 1} of {len(case.schedule)}{kinds.get(first.step, '')}"]
    if first.row >= 0:
        words.append(f"row {first.row}")
    if first.position >= 0:
        words.append(f"position {first.position} (the {ordinal(first.position)} token)")
    if first.channel >= 0:
        words.append(f"channel {first.channel}")
    return ", ".join(words)


def facts(first: Divergence) -> list[Fact]:
    """Returns what else is known about the first state that differs."""
    known = [
        ("operation", first.operation),
        ("module", first.module),
        ("site", str(first.site)),
        ("difference", _difference(first)),
        ("missing", f"it {first.missing}" if first.missing else None),
    ]
    return [(name, value) for name, value in known if value]


def _difference(first: Divergence) -> str | None:
    """Returns how far it is off; None where there is nothing to compare."""
    if first.missing:
        return None
    if not math.isfinite(first.difference):
        return "one path is not finite here"
    return (
        f"{number(first.difference)}, which is {times(first.excess)} the allowed "
        f"{number(first.allowed)}"
    )
