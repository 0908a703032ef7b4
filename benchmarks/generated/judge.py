"""Hunts for a drawn fault, and tells whether the line that the hunt names is right."""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import kvfuzz
from benchmarks.generated.draw import Fault, draw_fault, fixed_cases
from benchmarks.generated.models import MODELS, Model
from kvfuzz.case.case import Case
from kvfuzz.errors import KvfuzzError
from kvfuzz.localize.location import Line, Location
from kvfuzz.subjects.protocol import Factory
from tests.quality.injected.copies import Copy, Place
from tests.quality.injected.reach import Operation, first_changed, operations

Hit = Literal["line", "reached", "function", "wrong", "outside", "none"]
RIGHT: tuple[Hit, ...] = ("line", "reached")
SECONDS = 240
_TOPICS = {
    r"rope|rotary|rotat|\bcos\b|\bsin\b|freqs|angles|turned|half": {
        "position index", "rope scaling", "projection", "append slot",
    },
    r"position|past|start|offset|arange|length|seen": {
        "position index", "append slot", "mask alignment", "stale state", "rope scaling",
        "recurrent state", "window",
    },
    r"mask|allowed|causal|hidden = torch.ones|bias|alibi|distance|slope|far\b": {
        "mask alignment", "window", "position index",
    },
    r"\.keys|\.values|cache|update|cat\(|past|slot|pool|store|history|held|kept": {
        "append slot", "stale state", "layer index", "batch row", "recurrent state",
        "evicted keys", "window",
    },
    r"state|sums|matrix|total|decay|conv": {"recurrent state", "append slot", "stale state"},
    r"score|weights|softmax|attn|attention|similarity|mixed|context": {"mask alignment", "scale"},
    r"query|key|value|proj|qkv|heads|view|transpose|repeat": {
        "projection", "head grouping", "append slot", "scale",
    },
    r"norm|ln_|variance|eps": {"norm", "scale"},
    r"residual|shortcut|x = x \+|hidden_states \+|\+ hidden": {"residual", "scale"},
    r"mlp|fc|up|down|gate|act|gelu|silu|relu|inner|hidden": {"mlp", "scale"},
    r"logits|head|wte|embed|final|unembed": {"readout", "scale", "norm"},
}  # fmt: skip
"""The causes that fit a line, by what its text is about."""
_BY_KIND = {
    "scale missing": {"scale"},
    "constant changed": {"scale"},
    "stale value": {"stale state", "append slot", "position index", "recurrent state"},
}


class TooLong(BaseException):
    """A fault makes its model run for too long."""


@dataclass(frozen=True)
class Result:
    """The outcome of one fault. `replaced` counts the draws before it, by their reasons."""

    fault: Fault
    law: str
    schedule: str
    hit: Hit
    function: bool
    unsure: bool
    candidate: bool
    cause: str
    cause_right: bool
    suspect: str
    named: str
    text: str
    reached: tuple[str, ...]
    advice: str = ""
    replaced: dict[str, int] = field(default_factory=dict)


class Bench:
    """The models of the benchmark, each made when it is first drawn, below the folder `root`."""

    def __init__(self, root: Path, examples: int, only: tuple[str, ...] = ()) -> None:
        self._root, self._examples = root, examples
        self._models: dict[str, Model] = {}
        self._names = [name for name in MODELS if not only or name in only]
        self._number = 0

    def result(self, seed: int, number: int) -> Result:
        """Returns what comes of the fault `number` of `seed`."""
        rng = random.Random(f"{seed}:{number}")
        replaced: Counter[str] = Counter()
        while True:
            name = rng.choice(self._names)
            model = self._model(name)
            fault = draw_fault(rng, name, model.sources, model.sites)
            hunted = rng.randrange(2**31)
            if fault is None:
                continue
            why, result = self._hunt(model, fault, hunted)
            if result is not None:
                result.replaced.update(replaced)
                return result
            replaced[why] += 1

    def _model(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = Model(name, self._root)
        return self._models[name]

    def _hunt(self, model: Model, fault: Fault, seed: int) -> tuple[str, Result | None]:
        self._number += 1
        try:
            with _limited():
                copy = model.copied(f"drawn_{self._number}", [fault])
                try:
                    return self._judged(model, fault, copy, seed)
                finally:
                    copy.forget()
        except TooLong:
            return "too long", None
        except KvfuzzError:
            return "raised", None
        except Exception:
            return "raised", None

    def _judged(
        self, model: Model, fault: Fault, copy: Copy, seed: int
    ) -> tuple[str, Result | None]:
        factory = model.made(copy)
        if not shows(factory):
            return "agreed", None
        hunt = kvfuzz.fuzz(factory, seed=seed, examples=self._examples)
        if hunt.failure is None:
            return hunt.verdict, None
        verdict, case = hunt.failure.verdict, hunt.failure.case
        if verdict.error is not None:
            return "raised", None
        reached = self._reached(model, fault, copy, case)
        location = hunt.explanation.location if hunt.explanation else None
        law = "precision" if verdict.precision else verdict.law
        return "", _result(fault, copy, law, case, location, reached)

    def _reached(self, model: Model, fault: Fault, copy: Copy, case: Case) -> tuple[Place, ...]:
        """Returns the lines where a wrong value first shows, in either path; none if that is on the
        line of the fault itself."""
        found: dict[Place, None] = {}
        for path in ("cached", "uncached"):
            faulty = operations(copy, model.made(copy), case, path)
            clean = operations(model.copy, model.factory, case, path)
            changed = list(first_changed(faulty, clean))
            if changed and not _is_on(changed[0], fault):
                computing = [one for one in changed if not one.view]
                found |= dict.fromkeys(one.place for one in (*changed[:1], *computing[:1]))
        return tuple(found)


def shows(factory: Factory) -> bool:
    """Whether the paths of a subject disagree, or one raises, on one of a few programs. A hunt for
    each of the faults that change nothing would take most of the time."""
    return any(
        kvfuzz.check(factory.subject(case), case).status == "diverged"
        for case in fixed_cases(factory)
    )


def _is_on(operation: Operation, fault: Fault) -> bool:
    file, line = operation.place
    return file == fault.file and fault.lines[0] <= line <= fault.lines[1]


def _result(
    fault: Fault,
    copy: Copy,
    law: str,
    case: Case,
    location: Location | None,
    reached: tuple[Place, ...],
) -> Result:
    first = location.first if location else None
    line = first.source if first else None
    hit = hit_of(line, copy, fault, reached)
    candidates = getattr(location, "candidates", ()) if location else ()
    cause = (location.cause or "") if location and first else ""
    where = f"{fault.before} {fault.becomes}"
    function = bool(line) and hit != "outside" and _in_function(line, copy, fault, reached)
    return Result(
        fault,
        law,
        str(case.schedule),
        hit,
        function,
        bool(candidates),
        any(hit_of(one, copy, fault, reached) in RIGHT for one in candidates),
        cause,
        cause in _causes(fault, where, line),
        location.suspect if location else "",
        str(line) if line else "",
        line.text if line else "",
        tuple(f"{file}:{number}" for file, number in reached),
        (location.advice or "") if location else "",
    )


def hit_of(line: Line | None, copy: Copy, fault: Fault, reached: tuple[Place, ...]) -> Hit:
    """Classifies a named line."""
    if line is None:
        return "none"
    path = Path(line.file)
    if path.parent.name != copy.package:
        return "outside"
    if path.stem == fault.file and fault.lines[0] <= line.line <= fault.lines[1]:
        return "line"
    if (path.stem, line.line) in reached:
        return "reached"
    inside = path.stem == fault.file and fault.function[0] <= line.line <= fault.function[1]
    return "function" if inside else "wrong"


def _in_function(line: Line | None, copy: Copy, fault: Fault, reached: tuple[Place, ...]) -> bool:
    return hit_of(line, copy, fault, reached) in (*RIGHT, "function")


def _causes(fault: Fault, where: str, line: Line | None) -> set[str]:
    """Returns the causes that fit a fault."""
    text = f"{where} {line.text if line else ''}"
    found = set(_BY_KIND.get(fault.kind, ()))
    for topic, causes in _TOPICS.items():
        if re.search(topic, text):
            found |= causes
    if fault.condition == "layer 1":
        found.add("layer index")
    return found


@contextmanager
def _limited() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
