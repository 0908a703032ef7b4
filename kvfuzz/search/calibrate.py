"""Calibrates a subject: measures the rounding noise of its cases on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvfuzz.case.case import Case
from kvfuzz.case.environment import environment_of
from kvfuzz.case.files import name_in_folder
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import Diverges, Inconclusive, InvalidSubject, UsageError
from kvfuzz.oracle.agreement import check_agreement
from kvfuzz.search.rounds import draw_cases, fresh_seed
from kvfuzz.search.strategies import space_of
from kvfuzz.subjects.calibration import COMFORTABLE, LEEWAYS, Calibration, Lane, leeway_for, read
from kvfuzz.subjects.loading import Options, load
from kvfuzz.subjects.protocol import Factory

EXAMPLES = 100
ENOUGH = 50
"""The fewest cases that justify a leeway."""


def calibrate(
    subject: str,
    *,
    examples: int | None = None,
    seed: int | None = None,
    options: Options | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Runs `examples` cases (default EXAMPLES) of `subject` in float64 and in each dtype that it
    is fuzzed in, or in the one of `options`. Returns the largest excess and the leeway of each.

    Only a correct subject can be calibrated. Raises Diverges if a case diverges in float64, or by
    more than the largest leeway in another dtype; InvalidSubject if the subject does not run in
    float64, which is needed to distinguish rounding from a fault; Inconclusive if nothing could be
    compared. `progress` is called with (done, total).
    """
    options = options or Options()
    examples = examples or EXAMPLES
    seed = fresh_seed() if seed is None else seed
    named = load(subject, options)
    double = _load_float64(named.name, options)
    others = [dtype for dtype in named.dtypes if dtype != "float64"]
    factories = {"float64": double} | dict.fromkeys(others, named)
    lanes = []
    for number, (dtype, factory) in enumerate(factories.items()):
        before, total = number * examples, len(factories) * examples

        def count(done: int, before: int = before, total: int = total) -> None:
            if progress is not None:
                progress(before + done, total)

        lanes.append(_measure(factory, dtype, seed, examples, count))
    where = environment_of(options.device)
    return Calibration(named.name, seed, examples, dict(options.config), tuple(lanes), where)


def default_path(folder: Path, subject: str) -> Path:
    """Returns the path of the calibration of `subject` in `folder`."""
    return folder / "calibration" / f"{name_in_folder(subject)}.json"


def with_calibration(
    options: Options, subject: str, folder: Path, given: Path | None
) -> tuple[Options, str | None]:
    """Returns `options` with the calibration of `subject`: the one in the `given` file, or else the
    one kept in `folder`. If the kept one does not fit, returns `options` unchanged and the reason.

    Raises UsageError if the given one does not fit.
    """
    path = given or default_path(folder, subject)
    if given is None and not path.is_file():
        return options, None
    found = read(path)
    misfit = found.misfit(subject, options.config, environment_of(options.device))
    if misfit is None:
        return replace(options, calibration=found), None
    if given is not None:
        raise UsageError(f"the calibration {path} does not fit: {misfit}")
    return options, f"the calibration {path} is not used: {misfit}"


def _load_float64(name: str, options: Options) -> Factory:
    if "float64" in load(name, replace(options, dtype=None)).dtypes:
        return load(name, replace(options, dtype="float64"))
    raise InvalidSubject(
        f"{name} cannot be calibrated: it does not run in float64, which is needed to distinguish "
        "rounding from a fault"
    )


def _measure(
    factory: Factory, dtype: str, seed: int, examples: int, progress: Callable[[int], object]
) -> Lane:
    """Runs `examples` cases of `factory` in `dtype`, and returns their largest excess and the
    leeway that covers it."""
    space = replace(space_of(factory), dtypes=(dtype,))
    worst: tuple[float, Case, Verdict] | None = None
    positions = weak_positions = read = 0
    for number, case in enumerate(draw_cases(space, seed, examples)):
        verdict = check_agreement(
            factory.subject(case), case, factory.name, probe=False, measure=True
        ).verdict
        if verdict.diverged and (dtype == "float64" or verdict.first is None):
            raise Diverges(
                f"{factory.name} diverges in {dtype}; only a correct subject can be calibrated: "
                f"run kvfuzz fuzz {factory.name} --dtype {dtype}"
            )
        positions += verdict.positions
        read += verdict.positions > 0 and case.reads_cache
        weak_positions += verdict.weak_positions
        if worst is None or verdict.excess > worst[0]:
            worst = verdict.excess, case, verdict
        progress(number + 1)
    if worst is None or not read or worst[2].worst is None:
        raise Inconclusive(f"no case of {factory.name} in {dtype} could be compared")
    excess, case, verdict = worst
    assert verdict.worst is not None
    leeway = _leeway(factory.name, dtype, excess, examples)
    where = {"case": case.to_json(), "row": verdict.worst[0], "position": verdict.worst[1]}
    return Lane(dtype, examples, positions, weak_positions, excess, where, leeway)


def _leeway(name: str, dtype: str, excess: float, examples: int) -> float:
    """Returns the leeway that covers `excess`. Raises Diverges if none does, Inconclusive if there
    were too few `examples` to grant one."""
    leeway = leeway_for(excess)
    if leeway is None:
        raise Diverges(
            f"{name} differs in {dtype} by {excess:.3g} x the allowed, more than the "
            f"{LEEWAYS[-1] * COMFORTABLE:g} that the arithmetic of a device explains: find the "
            "cause (reduced precision in matrix products?)"
        )
    if leeway > 1 and examples < ENOUGH:
        raise Inconclusive(
            f"{name} needs a leeway of {leeway:g} in {dtype}, which takes {ENOUGH} cases or more "
            f"to grant, got {examples}"
        )
    return leeway
