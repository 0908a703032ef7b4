"""Random programs of cache operations, and what every row should have said: plain loops."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

Row = list[int | None]
OPERATIONS = ("crop", "reorder", "copy", "save", "reset")


@dataclass
class Outcome:
    """The largest relative difference of a program, where, and what was done and refused."""

    worst: float = 0.0
    where: str = ""
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


@torch.no_grad()
def run(
    subject: Any,
    seed: int,
    *,
    length: int = 18,
    given: tuple[str, ...] = (),
    padded: str | None = None,
    only: tuple[str, ...] = OPERATIONS,
    lowest: int = 0,
) -> Outcome:
    """Feed `subject` random chunks with random operations between them, and compare the logits of
    each row after each call with the uncached ones of that row's own tokens, from `lowest` on."""
    draw, outcome = random.Random(seed), Outcome()
    rows: list[Row] = [[] for _ in range(draw.randint(1, 3))]
    cache = subject.new_cache(len(rows))
    text: list[str] = [f"{len(rows)} rows"]
    offered = [word for word in only if getattr(subject, word, None) is not None]
    for turn in range(6):
        chunk = _chunk(draw, rows, length, padded, turn, lowest)
        if not chunk[0]:
            break
        held = [[*row, *new] for row, new in zip(rows, chunk, strict=True)]
        text.append(f"feed {chunk}")
        try:
            logits, cache = _fed(subject, chunk, held, cache, given)
        except NotImplementedError as error:
            outcome.refused[f"cached: {error}"] += 1
            break
        rows = held
        outcome.done["feed"] += 1
        difference = _difference(subject, logits, rows, len(chunk[0]))
        if not difference <= outcome.worst:
            outcome.worst, outcome.where = difference, "; ".join(text)
        if offered and draw.random() < 0.6:
            rows, cache = _operate(subject, draw.choice(offered), draw, rows, cache, outcome, text)
    return outcome


def _operate(
    subject: Any,
    word: str,
    draw: random.Random,
    rows: list[Row],
    cache: Any,
    outcome: Outcome,
    text: list[str],
) -> tuple[list[Row], Any]:
    """Do the operation `word`, and note that or the refusal."""
    try:
        rows, cache, what = _operated(subject, word, draw, rows, cache)
    except NotImplementedError as error:
        outcome.refused[f"{word}: {error}"] += 1
        return rows, cache
    outcome.done[word] += 1
    text.append(what)
    return rows, cache


def _chunk(
    draw: random.Random, rows: list[Row], length: int, padded: str | None, turn: int, lowest: int
) -> list[Row]:
    """What each row is fed next: some tokens, or in the first turn some padding too."""
    size = min(draw.choice((1, 1, 2, 3, 5, 7)), length - len(rows[0]))
    chunk: list[Row] = [[draw.randrange(lowest, 64) for _ in range(size)] for _ in rows]
    if padded is None or turn or size < 2:
        return chunk
    for row in chunk:
        pads = draw.randint(0, size - 1)
        span = range(pads) if padded == "left" else range(size - pads, size)
        for at in span:
            row[at] = None
    return chunk


def _fed(subject: Any, chunk: list[Row], held: list[Row], cache: Any, given: Any) -> Any:
    for tensor in subject.unused(cache) if hasattr(subject, "unused") else ():
        tensor.fill_(1e4)
    tokens = torch.tensor([[37 if t is None else t for t in row] for row in chunk])
    extra = {}
    if "mask" in given:
        extra["mask"] = torch.tensor([[t is not None for t in row] for row in held])
    if "positions" in given:
        texts = [[t is not None for t in row] for row in held]
        counts = [[sum(row[:at]) for at in range(len(row))] for row in texts]
        extra["positions"] = torch.tensor([row[-len(chunk[0]) :] for row in counts])
    return subject.cached(tokens, cache, **extra)


def _difference(subject: Any, logits: Any, rows: list[Row], new: int) -> float:
    """The largest difference relative to the largest logit, over the new slots that hold text."""
    worst = 0.0
    texts = [[t for t in row if t is not None] for row in rows]
    for length in sorted({len(text) for text in texts} - {0}):
        same = [index for index, text in enumerate(texts) if len(text) == length]
        expected = subject.uncached(torch.tensor([texts[index] for index in same]))
        for index, want in zip(same, expected, strict=True):
            row = rows[index]
            at = [slot for slot in range(len(row) - new, len(row)) if row[slot] is not None]
            places = [sum(t is not None for t in row[:slot]) for slot in at]
            said = logits[index][[slot - len(row) for slot in at]]
            if at:
                gap = float((said - want[places]).abs().max() / want.abs().max())
                worst = max(worst, math.inf if math.isnan(gap) else gap)
    return worst


def _operated(
    subject: Any, word: str, draw: random.Random, rows: list[Row], cache: Any
) -> tuple[list[Row], Any, str]:
    if word == "crop":
        count = draw.randint(1, len(rows[0]))
        return (
            [row[: len(row) - count] for row in rows],
            subject.crop(cache, count),
            f"crop {count}",
        )
    if word == "reorder":
        kind = draw.choice(("permute", "select", "repeat"))
        order = list(range(len(rows)))
        draw.shuffle(order)
        if kind == "select":
            order = order[: draw.randint(1, len(order))]
        if kind == "repeat":
            order = [i for i in range(len(rows)) for _ in range(2)]
        cache = subject.reorder(cache, torch.tensor(order))
        return [list(rows[i]) for i in order], cache, f"reorder {order}"
    if word == "copy":
        return rows, subject.copy(cache), "copy"
    if word == "save":
        return rows, subject.load(pickle.loads(pickle.dumps(subject.save(cache)))), "save"
    return [[] for _ in rows], subject.reset(cache), "reset"
