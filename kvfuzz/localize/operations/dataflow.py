"""Tracks which operation made each tensor, and which have written into its memory since."""

from __future__ import annotations

from torch import Tensor

_Region = tuple[object, ...]


class Dataflow:
    """The operations of a run, by number, looked up by the tensors that they made and wrote."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        self._writers: dict[int, dict[_Region, int]] = {}
        self._alive: list[Tensor] = []

    def made(self, tensor: Tensor, number: int) -> None:
        """Notes that operation `number` made `tensor`, or changed all of it."""
        self._made[id(tensor)] = number
        # Python reuses the id of a dead object, so every tensor must outlive the recording.
        self._alive.append(tensor)

    def written(self, tensor: Tensor, number: int) -> None:
        """Notes that operation `number` wrote `tensor`, which may be a part of its storage: the
        earlier writers of other parts stay."""
        storage = storage_of(tensor)
        if not storage:
            return
        if tensor.nbytes == tensor.untyped_storage().nbytes():
            self._writers[storage] = {}  # all of it was overwritten: no earlier write is left
        self._writers.setdefault(storage, {})[_region_of(tensor)] = number

    def producers(self, tensor: Tensor) -> tuple[int, ...]:
        """Returns the operation that made `tensor`, after those that have written into its storage
        since, newest first."""
        made = self._made.get(id(tensor), -1)
        known = (made,) if made >= 0 else ()
        if not self._writers:
            return known
        writers = self._writers.get(storage_of(tensor), {}).values()
        return (*sorted((one for one in writers if one > made), reverse=True), *known)

    def last_of(self, tensor: Tensor) -> int | None:
        """Returns the operation that gave `tensor` its present content; None where that is not one
        known operation."""
        last = self._made.get(id(tensor))
        writers = self._writers.get(storage_of(tensor), {}) if self._writers else {}
        newest = max(writers.values(), default=-1)
        return last if last is not None and newest <= last else writers.get(_region_of(tensor))


def _region_of(tensor: Tensor) -> _Region:
    """Returns which part of its storage `tensor` covers."""
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def storage_of(tensor: Tensor) -> int:
    """Returns the address of the storage of `tensor`; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
