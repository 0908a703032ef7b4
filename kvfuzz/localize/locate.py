"""From "the logits differ" to the first state, the line of source and the cause.

A case is located by states, by operations or by logits, in this order:

1. By the states that the subject itself reports, if it has a `trace`.
2. By every operation of the subject, recorded and compared with a run over the whole prefix.
3. By the logits, where nothing else is visible: these give only the step and the position.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from kvfuzz.case.case import Case
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize import traced_states
from kvfuzz.localize.causes import Facts, advice, find_cause
from kvfuzz.localize.guilty_operation import GuiltyOperation, find_guilty_operation
from kvfuzz.localize.leaks import locate_leak
from kvfuzz.localize.location import Divergence, Line, Location, SiteDifference, find_latents
from kvfuzz.localize.lookalikes import WrongState
from kvfuzz.localize.operations import evidence
from kvfuzz.localize.operations.first_difference import (
    find_first,
    latent_cells,
    map_cells,
    raised_at,
    shows_logits,
)
from kvfuzz.localize.operations.reference_runs import logits_agree
from kvfuzz.localize.operations.traced_case import (
    TracedCase,
    trace_to_divergence,
    trace_uncached,
)
from kvfuzz.localize.paths import PathGroups, PlainRuns, compare_paths, find_suspect, run_both
from kvfuzz.oracle.agreement import check_against
from kvfuzz.oracle.reference import find_reference
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.protocol import Factory, Subject
from kvfuzz.subjects.run import seeded
from kvfuzz.subjects.trace import Site


def locate(
    subject: Any,
    case: Case,
    *,
    strict: bool = False,
    options: Options | None = None,
    paths: PathGroups | None = None,
) -> Location:
    """Finds where `subject` (a subject, a factory of one, or a name) first goes wrong on `case`.

    Runs in float64 where the subject offers it, since a small fault in a state hides below the
    rounding of float32; in the case's own dtype where float64 shows nothing. `paths` are the paths
    that agree, if they are known. A state that differs while the logits agree is `latent`; with
    `strict` it is `first` like any other. `first` is None where no state differs that counts.
    Raises what the uncached path of the subject raises, InvalidSubject and InvalidCase.
    """
    factory = as_factory(subject, options=options)
    found = Location(None)
    with seeded(case.seed):
        for dtype in dict.fromkeys(("float64", case.dtype)):
            if dtype in factory.dtypes or dtype == case.dtype:
                case_in = replace(case, dtype=dtype)
                try:
                    found = _locate_in_dtype(factory, case_in, paths, strict)
                except KvfuzzError:
                    raise
                except Exception:
                    if dtype == case.dtype:
                        raise
                    continue  # some subjects fail in float64, for example scripted ones
                if found.first is not None or found.latent:
                    break
    return found


def _locate_in_dtype(
    factory: Factory, case: Case, paths: PathGroups | None, strict: bool
) -> Location:
    subject = factory.subject(case)
    plain = run_both(subject, case)
    paths = paths or _compare_paths(subject, case, plain)
    suspect, sentence = find_suspect(paths)
    started = time.process_time()
    with _paused_collector():
        if traced_states.can_trace(subject):
            found = _by_states(subject, case, strict)
        else:
            seen = _by_operations(subject, case, paths, strict, plain)
            found = seen or _by_logits(subject, case, factory.name)
    if found.cause == "uninitialised memory":
        suspect, sentence = "cached", None  # only there it is filled
    cost = (time.process_time() - started) / plain.seconds if plain.seconds else None
    notes = (*found.notes, *((sentence,) if sentence and found.first else ()))
    cells = _cells_with_first(found)
    return replace(found, suspect=suspect, cost=cost, notes=notes, cells=cells)


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pauses the garbage collector. A recording makes so many objects that it would run all the
    time, over everything that the process holds, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compare_paths(subject: Subject, case: Case, plain: PlainRuns) -> PathGroups | None:
    try:
        return compare_paths(subject, case, plain)
    except KvfuzzError:
        raise
    except Exception:
        return None  # the verdict reports what a path raises


# 1. By states.


def _by_states(subject: Subject, case: Case, strict: bool) -> Location:
    """Locates by the states that the subject reports."""
    sites = list(traced_states.compare_sites(subject, case))
    cells = tuple(traced_states.difference_map(sites))
    for compared in sites:
        if (first := traced_states.find_divergence(compared)) is not None:
            break
    else:
        return Location(None, cells=cells)
    latent = () if traced_states.logits_differ(sites) else find_latents(cells)
    if latent and not strict:
        return Location(None, latent=latent, cells=cells)
    guilty = find_guilty_operation(subject, case, first.step)
    facts = Facts(
        *_name_operation(guilty),
        earlier=compared.site.kind == "cache" and first.position < len(compared.step.before[0]),
        window=_window(subject, first.site),
    )
    found = _explain(first, traced_states.wrong_state(compared, sites, first), facts)
    shown = traced_states.find_evidence(sites, compared.step)
    return replace(found, evidence=shown, latent=latent, cells=cells)


# 2. By operations.


def _by_operations(
    subject: Subject, case: Case, paths: PathGroups | None, strict: bool, plain: PlainRuns
) -> Location | None:
    """Locates by every operation that the subject computes with torch; None if the logits differ
    and nothing inside could be compared."""
    if paths is not None and not paths.prefixes_agree:
        leak = locate_leak(subject, case, "causality")
        if leak is not None:
            note = "the uncached path is not causal: its logits move with later tokens"
            return replace(leak, notes=(note,))
    if find_suspect(paths)[0] == "uncached":
        traced = trace_uncached(subject, case)
    else:
        prefixes_agree = paths is not None and paths.prefixes_agree
        traced = trace_to_divergence(subject, case, plain.uncached, plain.cached, prefixes_agree)
    if not traced.raised and not shows_logits(traced):
        return None
    step = traced.diverging_step
    notes = _notes_on_recording(traced, plain.cached, subject)
    latent = find_latents(latent_cells(traced)) if step is None else ()
    found = None
    guilty = find_guilty_operation(subject, case, step) if step is not None else None
    if step is not None:
        found = find_first(traced, step, operation=guilty.step.index if guilty else None)
    elif latent and strict:
        found = find_first(traced, latent[0].step, latent=True)
    # After the search: the map shows what it has compared.
    cells = tuple(map_cells(traced, step))
    if step is None and not (latent and strict):
        return Location(None, latent=latent, cells=cells, notes=notes)
    if found is None and not cells and not traced.raised:
        return None
    if found is None:
        return Location(None, cells=cells, notes=(*notes, _note_nothing_differs(traced)))
    first, compared, blamed = found
    place = first.site, _window(subject, first.site)
    facts = evidence.find_facts(traced, compared, blamed, _name_operation(guilty), place)
    if guilty and guilty.line and not any(e.places for e in traced.recording.of(guilty.step.index)):
        first = _in_method(first, guilty, guilty.line)
    shown = evidence.find_evidence(traced, first.step)
    location = _explain(first, evidence.wrong_state(traced, compared), facts)
    return replace(location, evidence=shown, latent=latent, cells=cells, notes=notes)


def _name_operation(guilty: GuiltyOperation | None) -> tuple[str | None, str]:
    """Returns the kind of a guilty operation, and in words what proves it; None without one."""
    if guilty is None:
        return None, ""
    where = f"; {guilty.line.function} is at {guilty.line}" if guilty.line else ""
    return guilty.kind, f"the same calls without the {guilty.kind} are right{where}"


def _in_method(first: Divergence, guilty: GuiltyOperation, line: Line) -> Divergence:
    """Returns `first` at the `line` of a guilty method that computes with no tensors, such as one
    that changes a length."""
    site = Site("cache", first.site.layer or 0)
    return replace(
        first,
        step=guilty.step.index,
        site=site,
        source=line,
        caller=None,
        partner=None,
        module=None,
    )


def _notes_on_recording(
    traced: TracedCase, plain: Tensor | None, subject: Subject
) -> tuple[str, ...]:
    """Returns what to know about the recorded run; `plain` are the logits without recording."""
    notes = []
    if not traced.recording.whole:
        notes.append("the states are too large to keep: only the results of modules were compared")
    recorded = traced.logits
    if recorded is None or plain is None:
        return tuple(notes)
    if not logits_agree(recorded, plain[: len(recorded), : recorded.shape[1]], subject):
        notes.append(
            "the cached path gave other logits when it was recorded: it is not deterministic, or "
            "recording changes what it does"
        )
    return tuple(notes)


def _note_nothing_differs(traced: TracedCase) -> str:
    """Returns the note for a case that goes wrong although no state differs."""
    if not traced.raised:
        return "no state inside the model could be compared"
    last, line = traced.steps[-1], raised_at(traced)
    where = f" at {line}: {line.text}" if line else ""
    return f"no state differs up to where step {last.index + 1} ({last.kind}) raises{where}"


# 3. By logits.


def _by_logits(subject: Subject, case: Case, name: str) -> Location:
    """Locates by the logits, all that a subject shows that does not compute with torch."""
    verdict = check_against(find_reference(subject, case, name), subject, case, name)
    notes = ("this subject does not compute with torch, so its states cannot be seen",)
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


# What all three share.


def _explain(first: Divergence, state: WrongState, facts: Facts) -> Location:
    """Returns the location of `first` with its cause."""
    cause, seen = find_cause(first.site, first.position, state, facts)
    where = first.site, first.row, first.position
    return Location(first, cause, advice(cause, *where, seen, facts.operation))


def _window(subject: Any, site: Site) -> int | None:
    windows = getattr(subject, "windows", None)
    if not windows or site.layer is None or site.layer >= len(windows):
        return None
    found: int | None = windows[site.layer]
    return found


def _cells_with_first(found: Location) -> tuple[SiteDifference, ...]:
    """Returns the map with the first divergence on it, also where its state has no position."""
    first = found.first
    if first is None or not found.cells:
        return found.cells
    own = SiteDifference(first.step, str(first.site), first.position, first.excess)
    there = [cell for cell in found.cells if replace(cell, excess=own.excess) == own]
    if any(cell.excess > 1 for cell in there):
        return found.cells
    return (*(cell for cell in found.cells if cell not in there), own)
