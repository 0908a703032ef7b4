"""Which operation made each tensor, and which have since written into its memory."""

from __future__ import annotations

from torch import Tensor

_Region = tuple[object, ...]


class Memory:
    """The numbers of the operations of a run, by what they made and wrote."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        self._writers: dict[int, dict[_Region, int]] = {}
        self._alive: list[Tensor] = []

    def made(self, tensor: Tensor, number: int) -> None:
        """Operation `number` has made `tensor`, or changed all of it."""
        self._made[id(tensor)] = number
        self._alive.append(tensor)  # an id stands for one object only while that lives

    def written(self, tensor: Tensor, number: int) -> None:
        """Operation `number` has written `tensor`, which may be a part of its memory: what is
        elsewhere in that stays as earlier ones left it."""
        storage = _storage_of(tensor)
        if not storage:
            return
        if tensor.nbytes == tensor.untyped_storage().nbytes():
            self._writers[storage] = {}
        self._writers.setdefault(storage, {})[_region_of(tensor)] = number

    def producers(self, tensor: Tensor) -> tuple[int, ...]:
        """What has made `tensor`, and what has since written into its memory, the newest first."""
        made = self._made.get(id(tensor), -1)
        known = (made,) if made >= 0 else ()
        if not self._writers:
            return known
        writers = self._writers.get(_storage_of(tensor), {}).values()
        return (*sorted((one for one in writers if one > made), reverse=True), *known)

    def last_of(self, tensor: Tensor) -> int | None:
        """What has given `tensor` as it is now; None where that is not one operation that is
        known."""
        last = self._made.get(id(tensor))
        writers = self._writers.get(_storage_of(tensor), {}) if self._writers else {}
        newest = max(writers.values(), default=-1)
        return last if last is not None and newest <= last else writers.get(_region_of(tensor))


def _region_of(tensor: Tensor) -> _Region:
    """Where in its memory `tensor` is."""
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _storage_of(tensor: Tensor) -> int:
    """What stands for the memory of `tensor`; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
