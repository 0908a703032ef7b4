"""The hunt: draws cases until one diverges, or one of each cause; shrinks it, locates it, and saves
it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from kvfuzz.case.case import KEEP
from kvfuzz.case.counterexample import Counterexample
from kvfuzz.case.features import FEATURES, PADDED
from kvfuzz.case.files import name_in_folder
from kvfuzz.errors import UsageError, did_you_mean
from kvfuzz.oracle.laws import COMPANIONS, LAWS
from kvfuzz.search.crossings import Crossing, crossings
from kvfuzz.search.explain import Explanation
from kvfuzz.search.findings import NO_DETAILS, Finding, Keeper
from kvfuzz.search.known_divergences import Expectation, warn_of_unmet
from kvfuzz.search.pool import one_torch_thread
from kvfuzz.search.rounds import Plan, fresh_seed, run_rounds, shard_seed
from kvfuzz.search.shrink import PASSES, Shrunk
from kvfuzz.search.strategies import space_of
from kvfuzz.search.tally import Tally
from kvfuzz.search.workers import run_rounds_in_processes
from kvfuzz.subjects.call_limits import ANY_CALL, CallLimits
from kvfuzz.subjects.loading import Options, as_factory, import_named
from kvfuzz.subjects.module_state import module_state
from kvfuzz.subjects.needs import LENGTHS, PARENTS, TWO_CACHES
from kvfuzz.subjects.protocol import Factory, has_one_cache

EXAMPLES = 200
FORMER_NAMES = {"longest": "max_length", "locating": "locate"}
"""Keywords of `fuzz` that have a new name; they are accepted for one more release."""


@dataclass(frozen=True)
class FuzzSettings:
    """How to hunt, apart from the subject. Raises UsageError for values that make no sense.

    The hunt runs `examples` cases (default EXAMPLES, or no limit if `seconds` is given) under
    `seed` (default: a fresh one), in `workers` processes, with up to `max_length` tokens a row
    (default: 20, and some long rows: `kvfuzz.search.long_rows`). `shard` (k, n) derives a seed for
    shard k of n. `options` say how the subject is built. `laws` are companion laws
    (`kvfuzz.oracle.laws`); each case is checked by agreement and by one of them, in rotation.
    Divergences that are `expected` are counted and do not end the hunt. A
    counterexample is shrunk in at most `shrink_passes` forward passes, written into `folder`, if
    given, and located if `locate` is true. With `keep_going` the hunt does not end at a divergence:
    it looks for one of each cause (`kvfuzz.search.causes`), up to MOST_CAUSES.

    `database` is a folder where Hypothesis keeps failing cases; the next hunt tries them first,
    unless it has a `seed`. `progress` is called with the number of cases done. `announce` is called
    with the Hunt as it is when a case diverges, before that is shrunk and located; the case is in
    `folder` by then, and stays there if what follows is interrupted.
    """

    examples: int | None = None
    seed: int | None = None
    seconds: float | None = None
    workers: int = 1
    shard: tuple[int, int] | None = None
    max_length: int | None = None
    options: Options = field(default_factory=Options)
    folder: Path | str | None = None
    database: Path | str | None = None
    laws: Sequence[str] = COMPANIONS
    expected: Sequence[Expectation] = ()
    locate: bool = True
    shrink_passes: int = PASSES
    keep_going: bool = False
    progress: Callable[[int], None] | None = None
    announce: Callable[[Hunt], None] | None = None

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < 1:
            raise UsageError(f"examples should be at least 1, got {self.examples}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the time limit should be above 0 seconds, got {self.seconds}")
        if self.shrink_passes < 0:
            raise UsageError(f"shrink_passes should be at least 0, got {self.shrink_passes}")
        if self.workers < 1:
            raise UsageError(f"the number of workers should be at least 1, got {self.workers}")
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            k, n = self.shard
            raise UsageError(f"shard {k}/{n} should be K/N with 1 <= K <= N")
        for law in self.laws:
            if law not in LAWS:
                hint = f"{did_you_mean(law, LAWS)}: choose from {', '.join(LAWS)}"
                raise UsageError(f"there is no law {law!r}{hint}")


class FuzzKeywords(TypedDict, total=False):
    """The fields of FuzzSettings, as the keyword arguments of `fuzz`."""

    examples: int | None
    seed: int | None
    seconds: float | None
    workers: int
    shard: tuple[int, int] | None
    max_length: int | None
    options: Options
    folder: Path | str | None
    database: Path | str | None
    laws: Sequence[str]
    expected: Sequence[Expectation]
    locate: bool
    shrink_passes: int
    keep_going: bool
    progress: Callable[[int], None] | None
    announce: Callable[[Hunt], None] | None


@dataclass(frozen=True)
class Hunt:
    """The result of a hunt.

    `verdict` is `agreed`, `diverged`, or `inconclusive` if no case that read its cache agreed.
    `seed` draws the same cases again, without a shard; `shard` is `K/N of seed S` if `seed` was
    derived from S.

    `positions` counts compared positions, `weak_positions` those where rounding would hide a fault.
    The other counts are of `cases`: `read` agreed and read their cache; `discarded`, `weak` and
    `vacuous` ones proved nothing, for the `reasons` given, and others were drawn instead.
    `prefixwise` cases had uncached logits that depended on later tokens or on the length.
    `worst_excess` is the largest |difference| / allowed of the cases whose noise was measured;
    `bases` says where the allowed difference came from. `longest` is the longest row that a case
    read from its cache and agreed; `boundaries` says which ones that crossed. `calibration` is the
    path of the calibration file, if one was used. `remarks` are those of the factory. `narrow`
    counts the cases that also ran as a user would run them, by dtype, and `not_narrow` says why
    others could not be judged there.

    `findings` has the counterexample, and with `keep_going` one for each cause: the silent ones
    first, then those that raise. `further` counts the cases of causes for which there was no room.
    """

    verdict: str
    subject: str
    seed: int
    seconds: float
    cases: int
    positions: int
    weak_positions: int
    discarded: int
    weak: int
    vacuous: int
    read: int
    prefixwise: int
    worst_excess: float
    longest: int = 0
    boundaries: tuple[Crossing, ...] = ()
    reasons: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    exercised: Mapping[str, int] = field(default_factory=dict)
    vacuous_laws: Mapping[str, int] = field(default_factory=dict)
    expected: Mapping[int, int] = field(default_factory=dict)
    narrow: Mapping[str, int] = field(default_factory=dict)
    not_narrow: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    offers: frozenset[str] = frozenset()
    calls: CallLimits = ANY_CALL
    laws: tuple[str, ...] = COMPANIONS
    findings: tuple[Finding, ...] = ()
    further: int = 0
    keep_going: bool = False
    shard: str | None = None
    calibration: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def failure(self) -> Shrunk | None:
        """The smallest case of the first finding."""
        return self.findings[0].failure if self.findings else None

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the first finding."""
        return self.findings[0].explanation if self.findings else None

    @property
    def counterexample(self) -> Counterexample | None:
        """The counterexample of the first finding."""
        return self.findings[0].counterexample if self.findings else None

    @property
    def path(self) -> Path | None:
        """The file of the first finding."""
        return self.findings[0].path if self.findings else None

    @property
    def silent(self) -> tuple[Finding, ...]:
        """The findings that show in logits alone."""
        return tuple(one for one in self.findings if not one.raises)

    @property
    def raising(self) -> tuple[Finding, ...]:
        """The findings in which a path raises, as a design does that refuses a call."""
        return tuple(one for one in self.findings if one.raises)

    # The former names of two fields are kept for one release.
    @property
    def rows(self) -> int:
        return self.positions

    @property
    def weak_rows(self) -> int:
        return self.weak_positions

    def not_exercised(self) -> dict[str, str]:
        """Returns the features and laws that no agreeing case had, each with the reason. The hunt
        proved nothing about them."""
        lacking = {word: offer for offer, words in NEEDED.items() for word in words}
        return {
            word: "not asked for"
            if word in set(LAWS[1:]) - set(self.laws)
            else "not offered"
            if lacking.get(word) is not None and lacking[word] not in self.offers
            else "vacuous"
            if self.vacuous_laws.get(word)
            else "one cache at a time"
            if word in TWO_CACHES and has_one_cache(self.offers)
            else "not drawn"
            for word in EXERCISES
            if not self.exercised.get(word)
        }

    def to_json(self) -> dict[str, Any]:
        plain = "verdict subject seed shard calibration"
        return {
            **{name: getattr(self, name) for name in (*plain.split(), *COUNTS)},
            "rows": self.rows,
            "weak_rows": self.weak_rows,
            "exercised": {word: self.exercised.get(word, 0) for word in EXERCISES},
            "not_exercised": self.not_exercised(),
            "vacuous_laws": dict(sorted(self.vacuous_laws.items())),
            "boundaries": [one.to_json() for one in self.boundaries],
            "expected": {str(number + 1): count for number, count in sorted(self.expected.items())},
            "warnings": list(self.warnings),
            "remarks": list(self.remarks),
            "as_users_run_it": dict(self.narrow),
            "not_as_users_run_it": list(self.not_narrow),
            "seconds": round(self.seconds, 3),
            "keep_going": self.keep_going,
            "silent": [one.to_json() for one in self.silent],
            "raises": [one.to_json() for one in self.raising],
            **(self.findings[0].details() if self.findings else NO_DETAILS),
        }


_NO_COUNTS = ("exercised", "vacuous_laws", "expected", "narrow", "not_narrow")
_NOT_TOLD = (*_NO_COUNTS, "failures")
COUNTS = tuple(each.name for each in fields(Tally) if each.name not in _NOT_TOLD)
NEEDED = {
    LENGTHS: ("ragged",),
    PARENTS: ("tree",),
    "crop": ("crop",),
    "rollback": ("rollback",),
    "join": ("join",),
    "reorder": ("reorder", "select", "repeat"),
    "copy": ("fork",),
    "save": ("restore",),
    "reset": ("reset",),
    "mask": ("mask", *PADDED),
    "positions": ("positions",),
    KEEP: (KEEP,),
    "view": ("frame",),
    "generate": ("generation",),
}
"""The features and laws that a hunt can exercise only if the subject has this offer."""
EXERCISES = (*FEATURES, *LAWS[1:])
"""All that a hunt can exercise: features of cases, and companion laws."""


def fuzz(subject: Any, **settings: Unpack[FuzzKeywords]) -> Hunt:
    """Hunts for a case on which `subject` (a subject, a factory of one, or a name) diverges.

    The keyword arguments are the fields of FuzzSettings: `examples`, `seed`, `seconds`, `workers`,
    `shard`, `max_length`, `options`, `folder`, `database`, `laws`, `expected`, `locate`,
    `shrink_passes`, `keep_going`, `progress` and `announce`. With several workers, call it under
    `if __name__ == "__main__"`, since each process imports the script. torch has one thread
    meanwhile. Raises UsageError and InvalidSubject.
    """
    with one_torch_thread():
        return _hunt(subject, _read_settings(dict(settings)))


def _read_settings(given: dict[str, Any]) -> FuzzSettings:
    for former, name in FORMER_NAMES.items():
        if former in given:
            message = f"the argument {former!r} of kvfuzz.fuzz is now called {name!r}"
            warnings.warn(message, DeprecationWarning, stacklevel=3)
            given.setdefault(name, given.pop(former))
    if given.get("options", True) is None:
        del given["options"]
    known = [each.name for each in fields(FuzzSettings)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"fuzz() got an unexpected keyword argument {name!r}{hint}")
    return FuzzSettings(**given)


def _hunt(subject: Any, settings: FuzzSettings) -> Hunt:
    if settings.workers > 1 and not isinstance(subject, str):
        raise UsageError("several workers need the name of a subject, which each can import")
    if isinstance(subject, str):
        import_named(subject)
    state = module_state()  # before the first subject is built
    factory = as_factory(subject, options=settings.options)
    started = time.time()
    seed = fresh_seed() if settings.seed is None else settings.seed
    plan = _plan(factory, settings, seed, started)
    folder = Path(settings.folder) if settings.folder is not None else None

    def announce(found: Finding) -> None:
        if settings.announce is not None:
            so_far = hunt_of(Tally(found.number))
            settings.announce(replace(so_far, verdict="diverged", findings=(found,)))

    def hunt_of(tally: Tally) -> Hunt:
        return _result(factory, settings, plan, seed, tally)

    keeper = Keeper(factory, plan, folder, announce, state)

    def keep(tally: Tally) -> None:
        keeper.keep(tally.failures)

    if settings.workers == 1:
        tally = run_rounds(factory, plan, settings.progress, keep)
    else:
        tally = run_rounds_in_processes(plan, settings.workers, settings.progress, keep)
    hunt = hunt_of(tally)
    findings = keeper.follow_up(tally.failures)
    return replace(hunt, findings=findings, seconds=time.time() - started)


def _result(factory: Factory, settings: FuzzSettings, plan: Plan, seed: int, tally: Tally) -> Hunt:
    """Returns what `tally` says of a hunt, before its failures are followed up."""
    shard, calibration = settings.shard, settings.options.calibration
    return Hunt(
        "diverged" if tally.failures else "agreed" if tally.read else "inconclusive",
        factory.name,
        plan.seed,
        0.0,
        **{name: getattr(tally, name) for name in (*COUNTS, *_NO_COUNTS)},
        offers=plan.space.offers,
        calls=plan.space.calls,
        laws=plan.laws,
        boundaries=crossings(plan.space, tally.longest),
        warnings=() if tally.failures and not plan.keep_going else _warnings(plan, tally),
        keep_going=plan.keep_going,
        shard=f"{shard[0]}/{shard[1]} of seed {seed}" if shard else None,
        calibration=calibration.path if calibration else None,
        remarks=tuple(factory.remarks),
    )


def _warnings(plan: Plan, tally: Tally) -> tuple[str, ...]:
    return tuple(warn_of_unmet(plan.expected, tally.expected, plan.subject))


def _plan(factory: Factory, settings: FuzzSettings, seed: int, started: float) -> Plan:
    # Under a given seed the same cases are drawn each time, so kept cases must not come first. A
    # hunt that keeps going fails no test of Hypothesis, which would forget the kept ones.
    drawn_anew = settings.seed is not None or settings.keep_going
    database = None if drawn_anew else settings.database
    return Plan(
        factory.name,
        settings.options,
        space_of(factory, settings.max_length),
        shard_seed(seed, settings.shard),
        settings.examples or (None if settings.seconds else EXAMPLES),
        started + settings.seconds if settings.seconds else None,
        str(Path(database) / name_in_folder(factory.name)) if database else None,
        tuple(law for law in settings.laws if law != "agreement"),
        tuple(settings.expected),
        settings.shrink_passes,
        settings.locate,
        settings.keep_going,
    )
