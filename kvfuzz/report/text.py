"""Writes verdicts, hunts, locations and replays as text for the terminal."""

from __future__ import annotations

import math
import shlex
import textwrap
from pathlib import Path

from kvfuzz.case.case import Case
from kvfuzz.case.schedule import schedule_text
from kvfuzz.case.verdict import Impact, Verdict
from kvfuzz.localize.causes import ordinal
from kvfuzz.localize.location import Divergence, Location
from kvfuzz.report.counts import hunt_counts
from kvfuzz.report.words import count, given_text, times
from kvfuzz.search.explain import Explanation
from kvfuzz.search.findings import Finding
from kvfuzz.search.hunt import Hunt
from kvfuzz.search.replay import Replayed
from kvfuzz.search.shrink import Shrunk
from kvfuzz.search.shrink_file import ShrunkFile
from kvfuzz.subjects.calibration import DEPENDS_ON, Calibration
from kvfuzz.subjects.trace import Site

BASES = {
    "measured": "from the noise of the uncached path",
    "own dtype": "from the noise of the uncached path in this dtype, without the float64 twin",
    "constant": "a constant, scaled to the largest logit there",
    "declared": "as the subject declares for its cache",
    "least": "the least that any case is allowed",
}


def divergence_text(
    case: Case,
    verdict: Verdict,
    explanation: Explanation | None = None,
    replay: str | None = None,
) -> str:
    """Returns the report of a divergence: both logits, where, by how much, what to look at first,
    and the command that replays it."""
    lines = _headlines(case, verdict)
    if verdict.impact is not None:
        lines.append(f"  impact: {impact_text(verdict.impact)}")
    if verdict.prefixwise:
        lines.append(
            "  uncached logits depend on later tokens or on the length: judged against one "
            "uncached run for each prefix"
        )
    explanation = explanation or Explanation()
    if explanation.location is not None and explanation.location.first is not None:
        lines += _location_lines(case, explanation.location, explanation.location.first)
    elif explanation.location is not None:
        lines += [f"  note: {note}" for note in explanation.location.notes]
    if explanation.paths:
        lines.append(f"  paths: {explanation.paths.sentence}")
    lines += [f"  note: {note}" for note in explanation.notes]
    if not explanation.repeatable:
        lines.append(
            "  not repeatable: running this case again, on a fresh subject, gave another verdict "
            "(is there dropout, or state left in the model by earlier calls?)"
        )
    lines += _case_lines(case)
    if replay is not None:
        lines.append(f"  replay: {replay}")
    return "\n".join(lines)


def hunt_text(hunt: Hunt) -> str:
    """Returns the outcome of a hunt, with the full report of each divergence."""
    if hunt.findings and hunt.keep_going:
        return f"{_findings_text(hunt)}\n{hunt_counts(hunt)}"
    if hunt.findings:
        return f"{_finding_text(hunt.findings[0], hunt.subject)}\n{hunt_counts(hunt)}"
    if hunt.verdict == "inconclusive":
        reasons = "; ".join(hunt.reasons) or "no case called its cache twice"
        return f"INCONCLUSIVE {hunt.subject}: nothing was shown ({reasons})\n{hunt_counts(hunt)}"
    return f"AGREED {hunt.subject}: cached and uncached logits agree\n{hunt_counts(hunt)}"


def _finding_text(finding: Finding, subject: str) -> str:
    """Returns the full report of a finding."""
    case, verdict = finding.failure.case, finding.failure.verdict
    replay = replay_command(finding.path, subject)
    text = divergence_text(case, verdict, finding.explanation, replay)
    return f"{text}\n  {_shrinking(finding.failure, finding.path)}"


def _findings_text(hunt: Hunt) -> str:
    """Returns the reports of all causes: what goes wrong silently, and then what raises, as a
    design does that refuses a call."""
    groups = {"silent": hunt.silent, "raises": hunt.raising}
    counts = ", ".join(f"{len(found)} {word}" for word, found in groups.items() if found)
    lines = [f"DIVERGED {hunt.subject}: {count(len(hunt.findings), 'cause')} ({counts})"]
    for word, found in groups.items():
        for number, one in enumerate(found, 1):
            cases = f"{count(one.cases, 'case')}, the first is case {one.number}"
            lines.append(f"{word.upper()} {number} of {len(found)}: {cases}")
            lines.append(textwrap.indent(_finding_text(one, hunt.subject), "  "))
    if hunt.further:
        lines.append(f"{count(hunt.further, 'case')} of further causes, which are not kept")
    return "\n".join(lines)


def _shrinking(shrunk: Shrunk, path: Path | None) -> str:
    """Says how far a case was shrunk, and how to go on."""
    passes = count(shrunk.passes, "forward pass", "forward passes")
    if shrunk.done:
        return f"shrunk in {passes}: no simpler version diverges"
    again = f": kvfuzz shrink {shlex.quote(str(path))} goes on" if path else ""
    if shrunk.interrupted:
        return f"interrupted after {passes}; the smallest case so far is kept{again}"
    return f"not fully shrunk after {passes}{again}"


def shrunk_text(item: ShrunkFile) -> str:
    """Returns what became smaller in a counterexample file, and the report of what is left."""
    if item.shrunk is None:
        return f"{replay_text(item.replayed)}\nnothing to shrink"
    smaller = "; ".join(_smaller(item.before, item.shrunk.case))
    progress = _shrinking(item.shrunk, item.replayed.path)
    if not smaller and item.shrunk.done:
        progress = (
            f"no simpler version diverges ({count(item.shrunk.passes, 'forward pass', 'es')})"
        )
    word = "SHRUNK" if smaller else "MINIMAL" if item.shrunk.done else "UNCHANGED"
    said = "; ".join(filter(None, (smaller, progress)))
    return f"{word} {item.replayed.path}: {said}\n{_outcome_text(item.replayed)}"


def _smaller(before: Case, after: Case) -> list[str]:
    """Returns what differs between a case and a smaller version of it."""
    changes = {
        "rows": (before.batch, after.batch),
        "tokens per row": (before.length, after.length),
        "steps": (len(before.schedule), len(after.schedule)),
        "largest token": (max(map(max, before.tokens)), max(map(max, after.tokens))),
        "arguments": (len(before.arguments), len(after.arguments)),
        "seed": (before.seed, after.seed),
        "dtype": (before.dtype, after.dtype),
        **{name: (before.config[name], after.config.get(name)) for name in before.config},
    }
    return [f"{name} {old} to {new}" for name, (old, new) in changes.items() if old != new]


def found_text(hunt: Hunt) -> str:
    """Returns what is known of a divergence as soon as it is found, in two lines."""
    assert hunt.failure is not None
    case, verdict = hunt.failure.case, hunt.failure.verdict
    rows = f"{case.batch} {'row' if case.batch == 1 else 'rows'} of length {case.length}"
    replay = replay_command(hunt.path, hunt.subject)
    again = f"  {replay} runs it as it is; " if replay else "  "
    return (
        f"{_headlines(case, verdict)[0]}: case {hunt.cases} of seed {hunt.seed}, {rows}\n"
        f"{again}now it is made small ..."
    )


def impact_text(impact: Impact) -> str:
    """Says what a divergence does to predictions."""
    if not impact.positions:
        return "no position is finite in both paths"
    text = f"the likeliest token changes at {impact.argmax_flips} of {impact.positions} positions"
    if impact.kl is not None:
        text += f", KL divergence up to {impact.kl:.2g} nats"
    if impact.relative_l2 is not None:
        text += f", relative L2 {impact.relative_l2:.2g}"
    return text


def replay_command(path: Path | None, subject: str) -> str | None:
    """Returns the command that runs the counterexample at `path` again; None if it was not
    written."""
    if path is None:
        return None
    named = "" if not subject.startswith("<") else " --subject package.module:attribute"
    return f"kvfuzz replay {shlex.quote(str(path))}{named}"


def _headlines(case: Case, verdict: Verdict) -> list[str]:
    if verdict.finding:
        return [f"DIVERGED from {verdict.finding}"]
    if verdict.error:
        return _error_lines(case, verdict)
    if verdict.precision:
        return [
            f"DIVERGED in precision: {verdict.precision}",
            f"  logits agree: the largest difference is within what is allowed ({verdict.dtype})",
        ]
    return _value_lines(case, verdict)


def _value_lines(case: Case, verdict: Verdict) -> list[str]:
    first = verdict.first
    assert first is not None
    label = f"logit[{first.token}]"
    return [
        f"DIVERGED at step {first.step + 1} of {len(case.schedule)} ({first.kind}), row "
        f"{first.row}, position {first.position} (the {ordinal(first.position)} token)",
        f"  cached   {label} = {first.cached: .6g}",
        f"  uncached {label} = {first.uncached: .6g}",
        f"  difference {first.difference:.4g} is {times(_ratio(first.difference, first.allowed))} "
        f"the allowed {first.allowed:.3g} ({verdict.dtype}, {BASES[str(verdict.basis)]})",
    ]


def _error_lines(case: Case, verdict: Verdict) -> list[str]:
    if verdict.error_step is None:
        return [f"DIVERGED: {verdict.error}; the cached path did not"]
    step = list(case.steps())[verdict.error_step]
    columns = f", positions {step.start} to {step.stop - 1}" if step.feeds else ""
    return [
        f"DIVERGED at step {step.index + 1} of {len(case.schedule)} ({step.kind}){columns}",
        f"  {verdict.error}; the uncached path did not raise",
    ]


def _location_lines(case: Case, location: Location, first: Divergence) -> list[str]:
    """Returns the first state that differs, its line, its cause and the evidence."""
    lines = [f"  first divergence: {_place(case, first)}{_amount(first)}"]
    if first.source is not None:
        lines.append(f"    {first.source}: {first.source.text}")
    if first.source is not None and first.module:
        called = f", called from {first.caller}" if first.caller else ""
        lines.append(f"    in {first.source.function} of {first.module}{called}")
    if first.helper is not None:
        lines.append(f"    by way of {first.helper}, which is right in other calls")
    if first.candidates:
        others = ", ".join(map(str, first.candidates[1:]))
        lines.append(f"    unsure: it may be {others} as well")
    if first.partner is not None:
        lines.append(f"    compared with {first.partner}: {first.partner.text}")
    lines.append(f"  look first at: {location.advice}")
    if location.evidence:
        lines.append(f"  evidence: {'; '.join(location.evidence)}")
    lines += [f"  note: {note}" for note in location.notes]
    return lines


def _amount(first: Divergence) -> str:
    if first.missing:
        return ""
    return f", by {first.difference:.3g} where {first.allowed:.2g} is allowed"


def location_text(location: Location, case: Case, path: Path) -> str:
    """Says where a counterexample goes wrong, or which states differ although its logits agree."""
    if location.first is not None:
        lines = [f"LOCATED {path}", *_location_lines(case, location, location.first)]
        if location.suspect != "unknown":
            lines.append(f"  suspect: the {location.suspect} path")
    elif location.latent:
        lines = [f"LATENT {path}: the logits agree, but states inside the model differ"]
        lines += _latent_lines(location)
    elif location.notes:
        lines = [f"NOT LOCATED {path}", *(f"  note: {note}" for note in location.notes)]
    else:
        lines = [f"AGREED {path}: no state differs"]
    if location.cost is not None:
        lines.append(f"  cost: {location.cost:.1f} times the two plain runs of the case")
    return "\n".join(lines)


def _latent_lines(location: Location) -> list[str]:
    shown = [
        f"  {Site.parse(one.site).prose}, step {one.step + 1}: {times(one.excess)} the allowed"
        for one in location.latent[:_MOST_LATENT]
    ]
    more = len(location.latent) - len(shown)
    if more:
        shown.append(f"  and {more} more")
    return [*shown, f"  it may be harmless: {location.latent[0].reason}"]


_MOST_LATENT = 6


def _place(case: Case, located: Divergence) -> str:
    text = f"{located.site.prose} of row {located.row}"
    if located.missing:
        text += f", which {located.missing}"
    first = next(step for step in case.steps() if step.feeds)
    if located.step != first.index or located.position < first.size - 1:
        text += f", step {located.step + 1}, position {located.position}"
    return text


def _case_lines(case: Case) -> list[str]:
    rows = [" ".join(map(str, row)) for row in case.tokens]
    config = ", ".join(f"{name} {value}" for name, value in case.config.items())
    given = given_text(case)
    lines = [
        f"  case: seed {case.seed}, schedule {schedule_text(case.schedule)}{given}, {case.dtype}"
    ]
    if config:
        lines.append(f"  model: {config}")
    return [*lines, *(f"  row {i}: {row}" for i, row in enumerate(rows))]


def _ratio(difference: float, allowed: float) -> float:
    return difference / allowed if allowed else math.inf


def calibration_text(calibration: Calibration, path: Path) -> str:
    """Returns the largest difference of the clean cases of a subject, for each dtype."""
    place = ", ".join(f"{name} {calibration.environment.get(name)}" for name in DEPENDS_ON)
    lines = [f"CALIBRATED {calibration.subject} ({place})"]
    for lane in calibration.lanes:
        hidden = f" and {lane.weak_positions} hidden by rounding" if lane.weak_positions else ""
        wider = "" if lane.leeway == 1 else f": the allowed is multiplied by {lane.leeway:g}"
        lines.append(
            f"  {lane.dtype}: {lane.cases} cases, {lane.positions} positions compared{hidden}, "
            f"largest difference {times(lane.worst)} the allowed{wider}"
        )
    return "\n".join([*lines, f"  seed {calibration.seed}, written to {path}"])


def replay_text(item: Replayed) -> str:
    """Returns the result of replaying one counterexample, and how to shrink it further if it
    diverged and is not fully shrunk."""
    text = _outcome_text(item)
    assert item.found is not None
    assert item.verdict is not None
    if item.found.is_minimal or not item.verdict.diverged:
        return text
    return f"{text}\n  not fully shrunk: kvfuzz shrink {shlex.quote(str(item.path))} goes on"


def _outcome_text(item: Replayed) -> str:
    assert item.found is not None
    assert item.verdict is not None
    verdict = item.verdict
    if verdict.diverged:
        again = f"kvfuzz replay {shlex.quote(str(item.path))}"
        return divergence_text(item.found.case, verdict, item.explanation, again)
    if verdict.status != "agreed":
        return f"INCONCLUSIVE {item.path}: {verdict.status} ({verdict.reason})"
    recorded = item.found.verdict.get("status")
    was = "; it diverged when it was recorded" if recorded == "diverged" else ""
    return (
        f"AGREED {item.path}: {verdict.positions} positions, largest difference "
        f"{times(verdict.excess)} the allowed{was}"
    )
