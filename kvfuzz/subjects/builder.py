"""Builds the subjects of a class or callable of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kvfuzz.case.dtypes import NARROW
from kvfuzz.subjects.anew import build_in_float64, needs_float64
from kvfuzz.subjects.float64 import Float64Subject
from kvfuzz.subjects.native_dtype import native_dtype, put
from kvfuzz.subjects.run import seeded

BUILT_ANEW = (
    "in float64 it is built anew in float64, since it derives a constant when it is built, which "
    "its own dtype rounds"
)


@dataclass
class Builder:
    """Calls `call` with those of `seed`, `dtype` and `device` that are among its `parameters`, and
    casts and moves what it gives if it took no such argument. `dtype` is the one that the user
    asked for, if any. `remarks` say what it found out about the subjects."""

    call: Any
    name: str
    device: str
    dtype: str | None
    parameters: frozenset[str]
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # What depends on the configuration and not on the seed is found out once for each: the
        # dtype of what `call` gives, whether it can be put into another one, and whether it has to
        # be built anew in float64.
        self._native: dict[tuple[str | None, str], str] = {}
        self._moved: set[tuple[str | None, str]] = set()
        self._anew: dict[str, bool] = {}

    def __call__(self, seed: int, dtype: str, config: Mapping[str, Any]) -> Any:
        """Builds the subject of a case."""
        # A dtype is passed only if the user asked for one: the factory's own default is a choice
        # of the user's, too. Float64 is passed always: better built in it than run by a twin.
        # So are the narrow ones: that is how a user puts such a subject there.
        passed = dtype if dtype in ("float64", *NARROW) else self.dtype
        subject = self._call(seed, passed, config)
        device = None if "device" in self.parameters else self.device
        wanted = dtype or self.dtype
        settings = repr(sorted(config.items()))
        key = (passed, settings)
        if wanted and key not in self._native:
            self._native[key] = native_dtype(subject, self.name)
        needed = wanted if wanted and self._native[key] != wanted else None
        moved = (needed, settings)
        made = put(subject, self.name, needed, device, known=moved in self._moved)
        self._moved.add(moved)
        if isinstance(made, Float64Subject) and self._is_anew(settings, config):
            return build_in_float64(made, lambda: self._put(seed, passed, config))
        return made

    def _call(self, seed: int, passed: str | None, config: Mapping[str, Any]) -> Any:
        possible = {
            "seed": seed,
            "dtype": getattr(torch, passed) if passed else None,
            "device": self.device,
        }
        given = {n: v for n, v in possible.items() if v is not None and n in self.parameters}
        # Weights that `seed` does not draw come from torch's global generator.
        with seeded(seed):
            return self.call(**given, **config)

    def _put(self, seed: int, passed: str | None, config: Mapping[str, Any]) -> Any:
        device = None if "device" in self.parameters else self.device
        return put(self._call(seed, passed, config), self.name, None, device)

    def _is_anew(self, settings: str, config: Mapping[str, Any]) -> bool:
        """Whether subjects of `config` are to be built anew in float64."""
        if settings not in self._anew:
            # By the weights of one seed: which case comes first must not matter.
            first = Float64Subject(self._put(0, "float64", config))
            found = needs_float64(first, lambda: self._put(0, "float64", config))
            self._anew[settings] = found
            if found and BUILT_ANEW not in self.remarks:
                self.remarks.append(BUILT_ANEW)
        return self._anew[settings]
