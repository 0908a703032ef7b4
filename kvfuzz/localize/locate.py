"""From "the logits differ" to the first state, the line of source and the cause.

A subject that reports its states (`trace`) is located by them. Of any other that computes with
torch each operation is recorded and compared with that of a run over the whole prefix. Of one that
shows nothing there are the step and the position alone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.case.layout import layout
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize.causes import Facts, advice, find_cause
from kvfuzz.localize.location import Divergence, Location, SiteDifference, find_latents
from kvfuzz.localize.lookalikes import WrongState
from kvfuzz.localize.operations import evidence
from kvfuzz.localize.operations.first_difference import (
    cells,
    first_inside,
    latent_cells,
    raised_at,
    shows_logits,
)
from kvfuzz.localize.operations.reference_runs import agree
from kvfuzz.localize.operations.traced_case import Inside, diverging_step, inside, inside_uncached
from kvfuzz.localize.paths import PathGroups, compare_paths, find_suspect
from kvfuzz.localize.traced_states import (
    can_trace,
    compare_sites,
    difference_map,
    evidence_of,
    find_divergence,
    logits_differ,
    state_of,
)
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import reference
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.protocol import Factory, Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, run_cached, run_uncached, seeded
from kvfuzz.subjects.trace import Site


def locate(
    subject: Any,
    case: Case,
    *,
    strict: bool = False,
    options: Options | None = None,
    paths: PathGroups | None = None,
) -> Location:
    """Where `subject` (a subject, a factory of one, or a name) first goes wrong on `case`.

    In float64 where the subject offers it, since a small fault in a state hides below the rounding
    of float32; in the case's own dtype where float64 shows nothing. `paths` says which paths agree,
    if that is known. A state that differs while the logits agree is `latent`; with `strict` it is
    `first` as any other. `first` is None where no state differs that counts. Raises what the
    uncached path of the subject raises, InvalidSubject and InvalidCase.
    """
    factory = as_factory(subject, options=options)
    found = Location(None)
    with seeded(case.seed):
        for dtype in dict.fromkeys(("float64", case.dtype)):
            if dtype in factory.dtypes or dtype == case.dtype:
                case_in = replace(case, dtype=dtype)
                try:
                    found = _located(factory, case_in, paths, strict)
                except KvfuzzError:
                    raise
                except Exception:
                    if dtype == case.dtype:
                        raise
                    continue  # a subject that does not follow into float64, as a scripted one
                if found.first is not None or found.latent:
                    break
    return found


def _located(factory: Factory, case: Case, paths: PathGroups | None, strict: bool) -> Location:
    subject = factory.subject(case)
    plain, uncached, logits = _plain(subject, case)
    paths = paths or _paths(subject, case)
    suspect, sentence = find_suspect(paths)
    started = time.perf_counter()
    if can_trace(subject):
        found = _by_states(subject, case, strict)
    else:
        found = _by_operations(subject, case, paths, strict, uncached, logits)
        if not found.located and not found.cells:
            found = _by_logits(subject, case, factory.name)
    cost = (time.perf_counter() - started) / plain if plain else None
    notes = (*found.notes, *((sentence,) if sentence and found.first else ()))
    return replace(found, suspect=suspect, cost=cost, notes=notes, cells=_with_first(found))


def _with_first(found: Location) -> tuple[SiteDifference, ...]:
    """The map with the first divergence on it, also where its state is not about one position."""
    first = found.first
    if first is None or not found.cells:
        return found.cells
    own = SiteDifference(first.step, str(first.site), first.position, first.excess)
    there = [cell for cell in found.cells if replace(cell, excess=own.excess) == own]
    if any(cell.excess > 1 for cell in there):
        return found.cells
    return (*(cell for cell in found.cells if cell not in there), own)


def _plain(subject: Subject, case: Case) -> tuple[float, Tensor, Tensor | None]:
    """What the two plain runs of `case` take, and the logits of both; None for those of the cached
    one if that raises."""
    started, logits = time.perf_counter(), None
    uncached = run_uncached(subject, layout(case).sequences)
    with suppress(CachedPathRaised, Refused):
        logits = run_cached(subject, case)
    return time.perf_counter() - started, uncached, logits


def _paths(subject: Subject, case: Case) -> PathGroups | None:
    try:
        return compare_paths(subject, case)
    except KvfuzzError:
        raise
    except Exception:
        return None  # what a path raises is told by the verdict


def _by_states(subject: Subject, case: Case, strict: bool) -> Location:
    """By the states that the subject reports."""
    states = list(compare_sites(subject, case))
    diverging = [(one, found) for one in states if (found := find_divergence(one)) is not None]
    map_ = tuple(difference_map(states))
    if not diverging:
        return Location(None, cells=map_)
    compared, first = diverging[0]
    latent = () if logits_differ(states) else find_latents(map_)
    if latent and not strict:
        return Location(None, latent=latent, cells=map_)
    facts = Facts(
        _operation_before(case, first.step),
        earlier=compared.site.kind == "cache" and first.position < len(compared.step.before[0]),
        window=_window(subject, first.site),
    )
    told = _told(first, state_of(compared, states, first), facts)
    shown = evidence_of(states, compared.step)
    return replace(told, evidence=shown, latent=latent, cells=map_)


def _operation_before(case: Case, step: int) -> str | None:
    """The kind of the last step up to `step` that fed nothing."""
    kinds = [one.kind for one in case.steps() if one.index <= step and not one.feeds]
    kinds = [kind for kind in kinds if kind not in ("switch", "new")]
    return kinds[-1] if kinds else None


def _window(subject: Any, site: Site) -> int | None:
    windows = getattr(subject, "windows", None)
    if not windows or site.layer is None or site.layer >= len(windows):
        return None
    found: int | None = windows[site.layer]
    return found


def _by_operations(
    subject: Subject,
    case: Case,
    paths: PathGroups | None,
    strict: bool,
    uncached: Tensor,
    logits: Tensor | None,
) -> Location:
    """By every operation of the torch modules. `paths` says which paths agree; `uncached` and
    `logits` are those of the two runs when they were not recorded."""
    if find_suspect(paths)[0] == "uncached":
        found = inside_uncached(subject, case)
    else:
        found = inside(subject, case, uncached, paths is not None and paths.prefixes_agree)
    if not found.raised and not shows_logits(found):
        return Location(None)
    step = diverging_step(found)
    notes = _seen(found) + _otherwise(found, logits, subject)
    latent = find_latents(latent_cells(found)) if step is None else ()
    what = None
    if step is not None or (latent and strict):
        what = first_inside(found, latent[0].step if step is None else step, latent=step is None)
    map_ = tuple(cells(found, step))
    if step is None and not (latent and strict):
        return Location(None, latent=latent, cells=map_, notes=notes)
    if what is None:
        return Location(None, cells=map_, notes=(*notes, _nothing_differs(found)))
    first, compared, blamed = what
    operation, window = _operation_before(case, first.step), _window(subject, first.site)
    told = _told(
        first,
        evidence.state_of(found, compared),
        evidence.facts_of(found, compared, blamed, operation, window),
    )
    shown = evidence.evidence_of(found, first.step)
    return replace(told, evidence=shown, latent=latent, cells=map_, notes=notes)


def _told(first: Divergence, state: WrongState, facts: Facts) -> Location:
    """The location `first` with its cause."""
    cause, seen = find_cause(first.site, first.position, state, facts)
    where = first.site, first.row, first.position
    return Location(first, cause, advice(cause, *where, seen, facts.operation))


def _seen(found: Inside) -> tuple[str, ...]:
    if found.recording.whole:
        return ()
    return ("the states are too large to keep: modules were compared, and not each operation",)


def _otherwise(found: Inside, logits: Tensor | None, subject: Subject) -> tuple[str, ...]:
    """What is said where the recorded run is not the plain one."""
    if found.logits is None or logits is None or agree(found.logits, logits, subject):
        return ()
    return (
        "the cached path gave other logits when it was recorded: it does not repeat, or it behaves "
        "otherwise while it is watched",
    )


def _nothing_differs(found: Inside) -> str:
    """What is said where no state differs and yet the case goes wrong."""
    if not found.raised:
        return "no state inside could be compared"
    last, line = found.steps[-1], raised_at(found)
    where = f" at {line}: {line.text}" if line else ""
    return f"no state differs up to where step {last.index + 1} ({last.kind}) raises{where}"


def _by_logits(subject: Subject, case: Case, name: str) -> Location:
    """By what a subject shows that has neither: the logits."""
    verdict = check_against(reference(subject, case, name), subject, case, name)
    notes = ("the inside of this subject cannot be seen: it does not compute with torch",)
    if verdict.first is None:
        return Location(None, notes=notes)
    one = verdict.first
    first = Divergence(
        one.step,
        one.row,
        one.position,
        Site("logits"),
        one.difference,
        one.allowed,
        channel=one.token,
    )
    text = (
        f"what the {one.kind} in step {one.step + 1} reads from the cache (only the logits of this "
        "subject can be seen)"
    )
    return Location(first, None, text, notes=notes)
