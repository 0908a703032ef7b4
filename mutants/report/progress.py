"""Says how far a score is, a line for each family of mutants, while it runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mutants.campaign.result import NOT_KILLED, Result, count_states
from mutants.library.registry import known
from mutants.report.words import FAULTY, state_words

NAMED = (*NOT_KILLED, *FAULTY)
"""The states in which each mutant is named."""


@dataclass
class FamilyLines:
    """Prints the line of a family once all its mutants are judged, with the time that is left if
    the others take as long on average."""

    say: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    begun: float = 0.0
    total: int = 0
    done: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    results: dict[str, list[Result]] = field(default_factory=dict)

    def begin(self, ids: Sequence[str]) -> None:
        """Notes which mutants and controls will be judged."""
        self.begun, self.total, self.done = self.clock(), len(ids), 0
        self.waiting = Counter(name.partition(".")[0] for name in ids)

    def add(self, result: Result) -> None:
        """Notes a result, and prints the line of its family if it was the last of it."""
        self.done += 1
        self.waiting[result.operator] -= 1
        self.results.setdefault(result.operator, []).append(result)
        if self.waiting[result.operator] == 0:
            seconds = self.clock() - self.begun
            left = seconds / self.done * (self.total - self.done)
            line = family_line(result.operator, self.results.pop(result.operator))
            more = f", about {left:.0f} s left" if self.done < self.total else ""
            self.say(f"{line} [{seconds:.0f} s{more}]")


def family_line(operator: str, results: Sequence[Result]) -> str:
    """Returns how many mutants of a family are in each state, and the names of those that should
    have been killed."""
    told = []
    for state, number in count_states(results).items():
        if number:
            names = sorted(_name(each) for each in results if each.state == state)
            shown = f" ({', '.join(filter(None, names))})" if any(names) else ""
            told.append(f"{number} {state_words(state)}{shown}")
    return f"{operator:14}  {', '.join(told)}"


def _name(result: Result) -> str:
    """Returns the name of a mutant to look at: one that was not killed and is no placebo."""
    mutant = known(result.id)
    placebo = mutant is not None and mutant.placebo
    return result.id.partition(".")[2] if result.state in NAMED and not placebo else ""
