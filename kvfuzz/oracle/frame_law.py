"""Checks the frame law: a step changes the entries of its own cache as it should, and no others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvfuzz.case.case import Case, Step
from kvfuzz.case.schedule import Reorder
from kvfuzz.case.verdict import Verdict
from kvfuzz.subjects.protocol import ONE_CACHE
from kvfuzz.subjects.run import last_uses, run_cached

View = list[tuple[Tensor, Tensor] | None]
"""Keys and values of each layer [batch, kv_heads, held, head_dim], newest entry last; None for a
layer without entries."""


def check_frame(subject: Any, case: Case) -> Verdict:
    """Runs `case` and judges every change to the entries of its caches."""
    if case.is_uneven:
        reason = "rows of different length have no common view"
        return Verdict("discarded", law="frame", reason=reason)
    watch = _Watched(subject, case)
    run_cached(watch, case, begin=watch.begin)
    if watch.broken is not None:
        finding = f"frame: {watch.broken}"
        return Verdict("diverged", excess=torch.inf, law="frame", finding=finding)
    if not watch.entries:
        return Verdict("discarded", law="frame", reason="the caches held no entries to compare")
    return Verdict("agreed", positions=watch.entries, law="frame")


class _Watched:
    """`subject`, with its caches viewed before and after each operation."""

    def __init__(self, subject: Any, case: Case) -> None:
        self._subject = subject
        ends = callable(getattr(subject, "release", None)) or getattr(subject, ONE_CACHE, False)
        self._last_uses = last_uses(case) if ends else {}
        self._windows = getattr(subject, "windows", None)
        self._views: dict[int, View] = {}
        self._caches: list[Any] = []
        self._step: Step | None = None
        self.broken: str | None = None
        self.entries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def begin(self, step: Step) -> None:
        self._step = step
        # A cache that was released, or ended by the next one, may hold anything.
        for number, last in self._last_uses.items():
            if last < step.index:
                self._views.pop(number, None)

    def new_cache(self, batch: int) -> Any:
        return self._compare(self._subject.new_cache(batch), None, ())

    def cached(self, tokens: Tensor, cache: Any, **given: Tensor) -> Any:
        before = self._view(cache)
        logits, after = self._subject.cached(tokens, cache, **given)
        return logits, self._compare(after, cache, before)

    def crop(self, cache: Any, count: int) -> Any:
        before = self._view(cache)
        return self._compare(self._subject.crop(cache, count), cache, before)

    def reorder(self, cache: Any, rows: Tensor) -> Any:
        before = self._view(cache)
        return self._compare(self._subject.reorder(cache, rows), cache, before)

    def join(self, cache: Any, other: Any) -> Any:
        assert self._step is not None
        assert self._step.source is not None
        self._views.pop(self._step.source, None)
        before = [
            _stacked(*layers) for layers in zip(self._view(cache), self._view(other), strict=True)
        ]
        return self._compare(self._subject.join(cache, other), cache, before)

    def load(self, state: Any) -> Any:
        assert self._step is not None
        old = self._caches[self._step.cache]
        return self._compare(self._subject.load(state), old, self._view(old))

    def copy(self, cache: Any) -> Any:
        before = self._view(cache)
        return self._compare(self._subject.copy(cache), None, before)

    def reset(self, cache: Any) -> Any:
        before = [
            None if layer is None else (layer[0][:, :, :0], layer[1][:, :, :0])
            for layer in self._view(cache)
        ]
        return self._compare(self._subject.reset(cache), cache, before)

    def _view(self, cache: Any) -> View:
        """Copies the entries that `cache` holds now."""
        return [
            None if layer is None else (layer[0].clone(), layer[1].clone())
            for layer in self._subject.view(cache)
        ]

    def _compare(self, cache: Any, replaced: Any, before: Any) -> Any:
        """Compares the entries of `cache` with those `before` the step; returns `cache`. It takes
        the place of `replaced` (None: it is a new cache)."""
        step = self._step
        assert step is not None
        number = step.cache
        broken = self._check_others(number) if self.broken is None else self.broken
        after = self._view(cache)
        if replaced is None and number >= len(self._caches):
            self._caches.append(cache)
        else:
            self._caches[number] = cache
        for layer, (old, new) in enumerate(zip(before, after, strict=False)):
            if old is not None and new is not None and broken is None:
                broken = self._check_layer(step, layer, old, new)
        self._views[number] = after
        self.broken = broken
        return cache

    def _check_others(self, number: int) -> str | None:
        """Describes a change to a cache other than `number`; None if there is none."""
        for other, view in self._views.items():
            if other == number:
                continue
            for layer, (old, new) in enumerate(
                zip(view, self._view(self._caches[other]), strict=True)
            ):
                if old is not None and new is not None and not _equal(old, new):
                    assert self._step is not None
                    done = f"step {self._step.index + 1} ({self._step.kind}) on cache {number}"
                    return f"{done} changed layer {layer} of cache {other}"
        return None

    def _check_layer(
        self, step: Step, layer: int, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]
    ) -> str | None:
        """Describes what is wrong with the entries of `layer` after `step`; None if nothing is."""
        where = f"step {step.index + 1} ({step.kind}): layer {layer}"
        slots = len(step.after[0])
        held = {tensor.shape[2] for tensor in new}
        window = self._windows[layer] if self._windows else None
        least = slots if window is None else min(window, slots)
        if len(held) > 1 or not least <= max(held) <= slots:
            due = slots if window is None else f"{least} to {slots}"
            return f"{where} holds {sorted(held)} entries of keys and values, {due} are due"
        rows = step.operation.rows if isinstance(step.operation, Reorder) else None
        for what, one, other in zip(("keys", "values"), old, new, strict=True):
            was = one[list(rows)] if rows is not None else one
            start, stop = slots - other.shape[2], len(step.before[0])  # positions of what is held
            begun = stop - was.shape[2]
            first, last = max(start, begun), min(stop, slots)
            if first >= last:
                continue
            kept = was[:, :, first - begun : last - begun]
            now = other[:, :, first - start : last - start]
            self.entries += kept.shape[0] * kept.shape[2]
            if not torch.equal(kept, now):
                wrong = (kept != now).any(-1).any(1).any(0).nonzero()
                slot = first + int(wrong[0])
                return f"{where} changed the {what} of slot {slot}, which was there before"
        return None


def _stacked(
    one: tuple[Tensor, Tensor] | None, other: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor] | None:
    """Returns the newest entries that both caches hold of a layer, the rows of one above those of
    the other."""
    if one is None or other is None:
        return None
    count = min(tensor.shape[2] for tensor in (*one, *other))
    keys, values = (
        torch.cat([tensor[:, :, tensor.shape[2] - count :] for tensor in pair])
        for pair in zip(one, other, strict=True)
    )
    return keys, values


def _equal(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(old, new, strict=True))
