"""kvfuzz proves that a language model's KV cache is right.

A decoder fed through its cache must give the logits that it gives without one. See `check` for
one case, `fuzz` for a hunt, `assert_agrees` for a test, and `load` for naming a subject.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvfuzz._version import __version__ as __version__

if TYPE_CHECKING:
    from kvfuzz.case.case import Case as Case
    from kvfuzz.case.case import Step as Step
    from kvfuzz.case.schedule import Crop as Crop
    from kvfuzz.case.schedule import Fork as Fork
    from kvfuzz.case.schedule import New as New
    from kvfuzz.case.schedule import Padded as Padded
    from kvfuzz.case.schedule import Reorder as Reorder
    from kvfuzz.case.schedule import Reset as Reset
    from kvfuzz.case.schedule import Restore as Restore
    from kvfuzz.case.schedule import Switch as Switch
    from kvfuzz.case.verdict import Verdict as Verdict
    from kvfuzz.errors import Diverges as Diverges
    from kvfuzz.errors import Inconclusive as Inconclusive
    from kvfuzz.errors import InvalidCase as InvalidCase
    from kvfuzz.errors import InvalidCounterexample as InvalidCounterexample
    from kvfuzz.errors import InvalidSubject as InvalidSubject
    from kvfuzz.errors import KvfuzzError as KvfuzzError
    from kvfuzz.errors import UsageError as UsageError
    from kvfuzz.localize.locate import locate as locate
    from kvfuzz.oracle.agreement import check as check
    from kvfuzz.search.calibrate import calibrate as calibrate
    from kvfuzz.search.hunt import Hunt as Hunt
    from kvfuzz.search.hunt import fuzz as fuzz
    from kvfuzz.search.judge import check_law as check_law
    from kvfuzz.search.known_divergences import Expectation as Expectation
    from kvfuzz.search.replay import replay as replay
    from kvfuzz.subjects.calibration import Calibration as Calibration
    from kvfuzz.subjects.loading import Options as Options
    from kvfuzz.subjects.loading import load as load
    from kvfuzz.subjects.protocol import Factory as Factory
    from kvfuzz.subjects.protocol import Subject as Subject
    from kvfuzz.testing.assertions import assert_agrees as assert_agrees
    from kvfuzz.testing.state_machine import state_machine as state_machine

# Found on first use, so that `import kvfuzz` costs neither torch nor Hypothesis.
_HOMES = {
    "assert_agrees": "testing.assertions",
    "calibrate": "search.calibrate",
    "Calibration": "subjects.calibration",
    "Case": "case.case",
    "Step": "case.case",
    "check": "oracle.agreement",
    "Diverges": "errors",
    "Inconclusive": "errors",
    "InvalidCase": "errors",
    "InvalidCounterexample": "errors",
    "InvalidSubject": "errors",
    "KvfuzzError": "errors",
    "UsageError": "errors",
    "Expectation": "search.known_divergences",
    "Hunt": "search.hunt",
    "fuzz": "search.hunt",
    "check_law": "search.judge",
    "Options": "subjects.loading",
    "load": "subjects.loading",
    "locate": "localize.locate",
    "state_machine": "testing.state_machine",
    "replay": "search.replay",
    "Crop": "case.schedule",
    "Fork": "case.schedule",
    "New": "case.schedule",
    "Padded": "case.schedule",
    "Reorder": "case.schedule",
    "Reset": "case.schedule",
    "Restore": "case.schedule",
    "Switch": "case.schedule",
    "Factory": "subjects.protocol",
    "Subject": "subjects.protocol",
    "Verdict": "case.verdict",
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
