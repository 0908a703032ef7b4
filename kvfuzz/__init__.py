"""kvfuzz proves that a language model's KV cache is right.

A decoder fed through its cache must give the logits that it gives without one. See `check` for
one case, `fuzz` for a hunt, `assert_agrees` for a test, and `load` for naming a subject.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kvfuzz.agreement import check as check
    from kvfuzz.assertions import assert_agrees as assert_agrees
    from kvfuzz.calibrating import calibrate as calibrate
    from kvfuzz.calibration import Calibration as Calibration
    from kvfuzz.case import Case as Case
    from kvfuzz.case import Step as Step
    from kvfuzz.errors import Diverges as Diverges
    from kvfuzz.errors import Inconclusive as Inconclusive
    from kvfuzz.errors import InvalidCase as InvalidCase
    from kvfuzz.errors import InvalidCounterexample as InvalidCounterexample
    from kvfuzz.errors import InvalidSubject as InvalidSubject
    from kvfuzz.errors import KvfuzzError as KvfuzzError
    from kvfuzz.errors import UsageError as UsageError
    from kvfuzz.expectations import Expectation as Expectation
    from kvfuzz.hunt import Hunt as Hunt
    from kvfuzz.hunt import fuzz as fuzz
    from kvfuzz.laws import check_law as check_law
    from kvfuzz.loading import Options as Options
    from kvfuzz.loading import load as load
    from kvfuzz.locating import locate as locate
    from kvfuzz.machine import state_machine as state_machine
    from kvfuzz.replaying import replay as replay
    from kvfuzz.schedule import Crop as Crop
    from kvfuzz.schedule import Fork as Fork
    from kvfuzz.schedule import New as New
    from kvfuzz.schedule import Padded as Padded
    from kvfuzz.schedule import Reorder as Reorder
    from kvfuzz.schedule import Reset as Reset
    from kvfuzz.schedule import Restore as Restore
    from kvfuzz.schedule import Switch as Switch
    from kvfuzz.subject import Factory as Factory
    from kvfuzz.subject import Subject as Subject
    from kvfuzz.verdict import Verdict as Verdict

# Found on first use, so that `import kvfuzz` costs neither torch nor Hypothesis.
_HOMES = {
    "assert_agrees": "assertions",
    "calibrate": "calibrating",
    "Calibration": "calibration",
    "Case": "case",
    "Step": "case",
    "check": "agreement",
    "Diverges": "errors",
    "Inconclusive": "errors",
    "InvalidCase": "errors",
    "InvalidCounterexample": "errors",
    "InvalidSubject": "errors",
    "KvfuzzError": "errors",
    "UsageError": "errors",
    "Expectation": "expectations",
    "Hunt": "hunt",
    "fuzz": "hunt",
    "check_law": "laws",
    "Options": "loading",
    "load": "loading",
    "locate": "locating",
    "state_machine": "machine",
    "replay": "replaying",
    "Crop": "schedule",
    "Fork": "schedule",
    "New": "schedule",
    "Padded": "schedule",
    "Reorder": "schedule",
    "Reset": "schedule",
    "Restore": "schedule",
    "Switch": "schedule",
    "Factory": "subject",
    "Subject": "subject",
    "Verdict": "verdict",
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvfuzz' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kvfuzz.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
