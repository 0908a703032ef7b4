"""What the operations of a torch model show about a cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from kvfuzz.localize.causes import Facts
from kvfuzz.localize.lookalikes import WrongState, table
from kvfuzz.localize.operations.align import aligned
from kvfuzz.localize.operations.compare_states import Compared
from kvfuzz.localize.operations.difference import allowed_for, difference_of
from kvfuzz.localize.operations.events import ATTENDING, TAPPED, Event
from kvfuzz.localize.operations.modules import block_of
from kvfuzz.localize.operations.traced_case import Inside

_NUMBER = re.compile(r"\.\d+(\.|$)")


def state_of(inside: Inside, compared: Compared) -> WrongState:
    """The state that differs first beside the right one, as rows, places and features."""
    piece = compared.pieces[0]
    if piece.axis is None or piece.row is not None:
        return WrongState()
    right = compared.partner.output
    if right.dim() != piece.found.dim():
        return WrongState()
    others = {
        number: table(event.output, piece.axis, piece.rows)
        for number, event in _same_elsewhere(inside, compared.partner, compared.event.step).items()
    }
    return WrongState(
        table(piece.found, piece.axis, piece.rows),
        table(right, piece.axis, piece.rows),
        piece.positions,
        others,
    )


def _same_elsewhere(inside: Inside, partner: Event, step: int) -> dict[int, Event]:
    """The same operation in the other layers of the reference run, by the layer's number."""
    alike: dict[int, list[Event]] = {}
    kind, _ = _kind(inside, partner)
    for event in inside.references.own(step).reference.recording.events:
        other, number = _kind(inside, event)
        if number is not None and other == kind:
            alike.setdefault(number, []).append(event)
    own = alike.pop(_kind(inside, partner)[1] or 0, [])
    # A line may run several times in a layer, as for keys and then for values.
    turn = next((n for n, event in enumerate(own) if event.index == partner.index), 0)
    return {n: events[turn] for n, events in alike.items() if len(events) == len(own)}


def _kind(inside: Inside, event: Event) -> tuple[tuple[object, ...], int | None]:
    """What an operation has in common with the same one in another layer, and the number of its
    own, None outside layers."""
    pattern, number = _layer(inside, event.module)
    return (pattern, event.operation, event.place, event.part), number


def _layer(inside: Inside, module: str) -> tuple[str, int | None]:
    """The name of `module` without that of its layer, and the number of that; None outside
    layers."""
    blocks = inside.recording.blocks
    block = block_of(module, blocks)
    if block is not None:
        return "*" + module[len(block) :], blocks[block]
    number = _NUMBER.search(module)
    if number is None:
        return module, None
    return _NUMBER.sub(".*.", module, count=1), int(number.group().strip("."))


def facts_of(
    inside: Inside, compared: Compared, blamed: Event, operation: str | None, window: int | None
) -> Facts:
    """What else is known about the state that differs first and the operation to blame."""
    piece = compared.pieces[0]
    step = next(one for one in inside.steps if one.index == blamed.step)
    before = inside.frames[compared.event.step].slots - inside.frames[compared.event.step].fed
    old = [position for position in _differing(compared) if 0 <= position < before]
    floating = compared.event.output.is_floating_point()
    return Facts(
        operation=operation,
        operated=not step.feeds,
        earlier=bool(old) and piece.every and not piece.new,
        rotary=floating and _is_rotary(inside, compared.event),
        recurrent=floating and _recurs(inside, blamed),
        window=window,
    )


def _recurs(inside: Inside, event: Event) -> bool:
    """Whether `event` is in a module that mixes tokens without attention, by a state."""
    if event.module and _layer(inside, event.module)[1] is None:
        return False
    same = [e for e in inside.recording.events if e.module == event.module]
    return not any(e.operation in ATTENDING for e in same) and any(
        e.unseen or any(inside.recording.events[i].step < e.step for i in e.inputs) for e in same
    )


def _differing(compared: Compared) -> list[int]:
    return [
        position
        for piece, values in zip(compared.pieces, compared.differences, strict=True)
        for position, value in zip(piece.positions, values, strict=False)
        if value > compared.allowed
    ]


def _is_rotary(inside: Inside, event: Event) -> bool:
    """Whether `event` is on the way to a cosine or a sine, or is one."""
    if event.operation in ("cos", "sin"):
        return True
    later = inside.recording.of(event.step)
    return any(e.operation in ("cos", "sin") and event.index in e.inputs for e in later)


def evidence_of(inside: Inside, step: int) -> tuple[str, ...]:
    """Which of the positions, the masks, and the keys and values of earlier and of new tokens
    differ in the first layer of `step` where attention does."""
    said: dict[str, bool] = {}
    events = inside.recording.of(step)
    into_states = {i for e in events if e.output.is_floating_point() for i in e.inputs}
    for event in events:
        # The tokens themselves, which no line of the model makes, agree always.
        if event.output.is_floating_point() or event.index not in into_states or not event.places:
            continue
        name = "masks" if event.output.dtype == torch.bool else "positions"
        if (one := inside.found.of(event.index)) is not None:
            said[name] = said.get(name, False) or one.differs
    for number, differs in enumerate(_keys_and_values(inside, step)):
        said[
            ("keys and values of earlier positions", "keys and values of the new tokens")[number]
        ] = differs
    return tuple(f"{name} {'differ' if differs else 'agree'}" for name, differs in said.items())


def _keys_and_values(inside: Inside, step: int) -> Sequence[bool]:
    """Whether those of earlier positions, and of the new tokens, differ in the first attention of
    `step` that gives something else; empty where there is none."""
    frame = inside.frames.get(step)
    if frame is None:
        return ()
    attending = {e.module for e in inside.recording.of(step) if e.operation in ATTENDING}
    for event in inside.recording.of(step):
        if event.module not in attending:
            continue
        if event.operation not in TAPPED:
            continue
        one = inside.found.of(event.index)
        if one is None or len(event.taps) != len(one.partner.taps):
            continue
        if not one.differs and event.operation not in ATTENDING:
            continue
        differs = [False, False]
        for mine, theirs in zip(event.taps[1:], one.partner.taps[1:], strict=True):
            pieces = aligned(mine, theirs, one.frame) if mine.is_floating_point() else None
            for piece in pieces or ():
                if piece.axis is None or not piece.every or piece.new:
                    continue
                over = difference_of(piece.found, piece.right) > allowed_for(theirs, 0.0)
                along = over.movedim(piece.axis, 0).flatten(1).any(1).tolist()
                for position, wrong in zip(piece.positions, along, strict=True):
                    differs[position >= frame.slots - frame.fed] |= wrong
        return differs
    return ()
