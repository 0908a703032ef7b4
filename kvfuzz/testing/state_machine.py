"""A Hypothesis state machine that tests longer programs than a hunt does.

Each rule performs one operation on a cache, up to `stateful_step_count` of them (default 50), with
fresh tokens. At the end the whole program is judged as one case. Hypothesis shrinks a failing
program rule by rule.

    TestMyDecoder = kvfuzz.state_machine("my_package:MyDecoder").TestCase
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvfuzz.case.case import KEEP, Case
from kvfuzz.case.schedule import SIDES, Entry, New, Ragged, Tree, columns_of
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import Diverges
from kvfuzz.oracle.agreement import check
from kvfuzz.oracle.laws import COMPANIONS
from kvfuzz.search.judge import judge_by
from kvfuzz.search.program_builder import ALL, OVER, ROWS, SMALL, Move, ProgramBuilder
from kvfuzz.search.programs import KEPT, MOST_CANDIDATES, focuses
from kvfuzz.search.strategies import MOST_ROWS, MOST_SEEDS, Space, space_of
from kvfuzz.subjects.loading import Options, as_factory
from kvfuzz.subjects.needs import LENGTHS, PARENTS
from kvfuzz.subjects.protocol import Factory, has_one_cache

LONGEST = 48
"""Default maximum of tokens per row; the subject's max_length if that is less."""


def state_machine(
    subject: Any,
    *,
    options: Options | None = None,
    max_length: int | None = None,
    longest: int | None = None,
) -> type[RuleBasedStateMachine]:
    """Returns a state machine for `subject` (a subject, a factory of one, or a name). Its programs
    feed up to `max_length` tokens to each row (default LONGEST). Run its `TestCase`, or
    `hypothesis.stateful.run_state_machine_as_test`.

    A program that diverges, or breaks a companion law, raises Diverges with its case as JSON.
    `longest` is the former name of `max_length`.
    """
    max_length = max_length or longest
    factory = as_factory(subject, options=options)
    most = factory.limits().max_length or LONGEST
    space = space_of(factory, max_length or min(LONGEST, most))
    name = f"Machine_{factory.name}"
    return type(name, (_Machine,), {"factory": factory, "space": space})


def new_program(space: Space, rows: int, begun: int | None = None) -> ProgramBuilder:
    """Returns a program of `space` that has fed nothing yet to a cache of `begun` of `rows` rows
    (default: all)."""
    begun = begun or rows
    entries: list[Entry] = [New(begun)] if begun < rows else []
    return ProgramBuilder(rows, space.bounds, [[0] * begun], entries)


class _Machine(RuleBasedStateMachine):
    factory: Factory
    space: Space

    def __init__(self) -> None:
        super().__init__()
        self.program: ProgramBuilder | None = None
        self.columns: list[tuple[int, ...]] = []
        self.settings: dict[str, Any] = {}

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        """Draws the model, the number of rows, and the optional arguments of every call."""
        space = self.space
        rows = data.draw(st.integers(1, space.most_rows), label="rows")
        joins = "join" in space.offers and not has_one_cache(space.offers)
        begun = data.draw(st.integers(1, rows), label="begun") if joins else rows
        self.program = new_program(space, rows, begun)
        drawn = {
            name: data.draw(st.sampled_from(values), label=name)
            for name, values in space.choices.items()
        }
        given: tuple[str, ...] = ("mask", "positions")
        if {"rollback", "join", LENGTHS, PARENTS} & space.offers and data.draw(
            st.booleans(), label="uneven"
        ):
            given = ("positions",)  # rows have lengths of their own only where there is no mask
            self.program.kind = "uneven"
        elif "mask" in space.offers:
            self.program.kind = "padding"
        self.settings = {
            "seed": data.draw(st.integers(0, MOST_SEEDS - 1)) if space.seeded else 0,
            "dtype": data.draw(st.sampled_from(space.dtypes), label="dtype"),
            "config": {**drawn, **space.fixed},
            "given": tuple(word for word in given if word in space.offers),
            "keep": data.draw(st.sampled_from((None, *KEPT))) if KEEP in space.offers else None,
        }

    @rule(data=st.data(), size=st.integers(1, 2 * SMALL))
    def feed(self, data: Any, size: int) -> None:
        """Feeds a chunk, or one token."""
        self._move(("feed", size, ()), data)

    @precondition(lambda self: "mask" in self.space.offers)
    @rule(
        data=st.data(),
        side=st.sampled_from(SIDES),
        size=st.integers(2, 2 * SMALL),
        pads=st.lists(st.integers(0, SMALL), min_size=MOST_ROWS, max_size=MOST_ROWS).map(tuple),
    )
    def feed_padded(self, data: Any, side: str, size: int, pads: tuple[int, ...]) -> None:
        """Feeds rows of unequal length."""
        self._move((side, size, pads), data)

    @precondition(lambda self: LENGTHS in self.space.offers)
    @rule(
        data=st.data(),
        size=st.integers(1, 2 * SMALL),
        rows=st.lists(st.integers(0, SMALL), min_size=MOST_ROWS, max_size=MOST_ROWS).map(tuple),
    )
    def feed_ragged(self, data: Any, size: int, rows: tuple[int, ...]) -> None:
        """Feeds rows of unequal length in one call, without padding."""
        self._move((Ragged.word, size, rows), data)

    @precondition(lambda self: PARENTS in self.space.offers)
    @rule(
        data=st.data(),
        size=st.integers(1, MOST_CANDIDATES),
        numbers=st.tuples(*[st.integers(0, MOST_CANDIDATES)] * (MOST_CANDIDATES + MOST_ROWS)),
    )
    def feed_tree(self, data: Any, size: int, numbers: tuple[int, ...]) -> None:
        """Feeds a tree of candidates, and keeps a branch in each row."""
        self._move((Tree.word, size, numbers), data)

    @precondition(lambda self: "crop" in self.space.offers)
    @rule(count=st.one_of(st.integers(1, SMALL), st.sampled_from((ALL, OVER))))
    def crop(self, count: int) -> None:
        """Crops the last tokens, all of them, or more than there are."""
        self._move(("crop", count, ()))

    @precondition(lambda self: "rollback" in self.space.offers)
    @rule(
        count=st.integers(1, SMALL),
        rows=st.lists(st.integers(0, SMALL), min_size=MOST_ROWS, max_size=MOST_ROWS).map(tuple),
    )
    def rollback(self, count: int, rows: tuple[int, ...]) -> None:
        """Rolls rows back by different counts."""
        self._move(("rollback", count, rows))

    @precondition(lambda self: "reorder" in self.space.offers)
    @rule(
        word=st.sampled_from(ROWS),
        count=st.integers(1, MOST_ROWS),
        rows=st.lists(st.integers(0, SMALL), min_size=MOST_ROWS, max_size=MOST_ROWS).map(tuple),
    )
    def reorder(self, word: str, count: int, rows: tuple[int, ...]) -> None:
        """Permutes, selects or repeats rows."""
        self._move((word, count, rows))

    @precondition(lambda self: bool(set(focuses(self.space.offers)) & {"fork", "restore", "reset"}))
    @rule(data=st.data())
    def operate(self, data: Any) -> None:
        """Forks, saves and restores, or resets the cache."""
        known = sorted(set(focuses(self.space.offers)) & {"fork", "restore", "reset"})
        self._move((data.draw(st.sampled_from(known)), 0, ()))

    @precondition(lambda self: "join" in self.space.offers and not has_one_cache(self.space.offers))
    @rule(word=st.sampled_from(("guests", "join")), count=st.integers(0, MOST_ROWS))
    def join(self, word: str, count: int) -> None:
        """Starts a cache for rows that may join, or joins two caches."""
        self._move((word, count, ()))

    @rule(rows=st.integers(0, MOST_ROWS))
    def new(self, rows: int) -> None:
        """Starts another cache on the same model."""
        self._move(("new", rows, ()))

    @precondition(lambda self: not has_one_cache(self.space.offers))
    @rule(cache=st.integers(0, SMALL))
    def switch(self, cache: int) -> None:
        """Switches to another cache."""
        self._move(("switch", cache, ()))

    def _move(self, move: Move, data: Any = None) -> None:
        assert self.program is not None
        before = self.program.used
        self.program.add(*move)
        for _ in range(self.program.used - before):
            token = st.integers(0, self.space.vocab_size - 1)
            column = st.tuples(*[token] * self.program.rows)
            self.columns.append(data.draw(column, label="column"))

    def teardown(self) -> None:
        """Judges the program as one case, by agreement and by every companion law."""
        if self.program is None or not self.columns:
            return
        schedule = self.program.schedule()
        used = sum(columns_of(entry) or 0 for entry in schedule)
        rows = tuple(zip(*self.columns[:used], strict=True))
        case = Case(tokens=rows, schedule=schedule, **self.settings)
        subject = self.factory.subject(case)
        verdict = check(subject, case, self.factory.name)
        _raise_if_diverged(verdict, case)
        for law in COMPANIONS:
            _raise_if_diverged(judge_by(law, subject, case, self.factory.name), case)


def _raise_if_diverged(verdict: Verdict, case: Case) -> None:
    if not verdict.diverged:
        return
    what = verdict.finding or verdict.error or verdict.precision or f"step {verdict.first}"
    raise Diverges(f"DIVERGED from {verdict.law}: {what}; case {case.to_json()}")
