"""An intervention: a mutant that fits any subject, and what is measured before it is scored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject, KvfuzzError, one_line
from kvfuzz.subjects.protocol import Factory, offers_of
from mutants.generic.probe_programs import probes, raises
from mutants.generic.wrapper import Interceptor, WrappedSubject
from mutants.mutant import ANY, Mutant

EquivalenceCheck = Callable[[Any, str], str | None]
"""Why a fault cannot show on a subject, whose cases run in a dtype, as measured on the clean
subject; None if it can."""


@dataclass(frozen=True)
class GenericMutant(Mutant):
    """`intercept` is put around the subject's `methods`. `offers` are those that the subject has to
    have, `lacks` says what it lacks where nothing that the fault changes is met, `advice` what to
    draw so that it shows. `equivalent_if` measures whether the subject's design hides the fault."""

    methods: frozenset[str] = frozenset()
    intercept: Interceptor = lambda call: call.go()
    offers: tuple[str, ...] = ()
    lacks: str = ""
    equivalent_if: EquivalenceCheck | None = None

    def into(self, subject: Any, dtype: str, size: float | None = None) -> WrappedSubject:  # noqa: ARG002
        """`subject` with this fault around its methods."""
        return WrappedSubject(subject, self.methods, self.intercept)

    def resolve(self, factory: Factory, cases: Sequence[Case]) -> Mutant:
        """This fault as it fits the subjects of `factory` that `cases` are run on: inapplicable
        where they lack what it needs, or where it meets nothing to change in the first MOST
        settings; equivalent where their design hides it in all. Raises InvalidSubject if that
        cannot be measured."""
        firsts = list({(c.dtype, repr(sorted(c.config.items()))): c for c in cases}.values())
        if self.is_control or not firsts:
            return self
        offers = offers_of(factory.subject(firsts[0]), factory.name)
        for word in self.offers:
            if word not in offers:
                lacking = NO_OFFER.get(word, f"offers no {word}")
                return replace(self, inapplicable=f"the subject {lacking}")
        hidden = self._hidden(factory, firsts)
        if hidden is not None:
            return replace(self, equivalent=hidden)
        acts = any(self._acts(factory, first) for first in firsts[:MOST])
        return self if acts else replace(self, inapplicable=self.lacks)

    def _acts(self, factory: Factory, first: Case) -> bool:
        """Whether the fault has something to change in the subject that `first` is run on."""
        subject = factory.subject(first)
        for case in probes(subject, first, offers_of(subject, factory.name)):
            faulty = self.into(subject, case.dtype)
            # What raises before it acts is for the campaign to call loud.
            if (raises(faulty, case) and not raises(subject, case)) or faulty.reached:
                return True
        return False

    def _hidden(self, factory: Factory, firsts: Sequence[Case]) -> str | None:
        """Why the fault shows on no subject; None if it shows on one."""
        if self.equivalent_if is None:
            return None
        reasons = []
        for first in firsts:
            try:
                reason = self.equivalent_if(factory.subject(first), first.dtype)
            except KvfuzzError:
                raise
            except NotImplementedError:
                continue  # no case with these settings can be run either
            except Exception as error:
                text = f"{self.id} could not be measured on {factory.name}: {one_line(error)}"
                raise InvalidSubject(text) from error
            if reason is None:
                return None
            reasons.append(reason)
        return reasons[0] if reasons else None


MOST = 12
"""In how many settings a fault is looked for something to change."""
NO_OFFER = {"positions": "takes no positions", "mask": "takes no mask"}


def made(
    fault: Callable[..., Any],
    methods: tuple[str, ...],
    intercept: Interceptor,
    *,
    offers: tuple[str, ...] = (),
    lacks: str = "nothing that it changes was met",
    advice: str = "",
    equivalent_if: EquivalenceCheck | None = None,
    placebo: bool = False,
    canary: bool = False,
    seen_in: str | None = None,
) -> GenericMutant:
    """The intervention whose function is `fault`: its operator is the name of its file, its name
    the function's, its description the docstring. Raises ValueError if there is none."""
    description = inspect.getdoc(fault)
    if not description:
        raise ValueError(
            f"the intervention {fault.__name__} needs a docstring that tells the fault"
        )
    return GenericMutant(
        operator=fault.__module__.rpartition(".")[2],
        name=fault.__name__,
        description=" ".join(description.split()),
        targets=(),
        fault=fault,
        site=None,
        witness=None,
        subject=ANY,
        seen_in=seen_in,
        placebo=placebo,
        canary=canary,
        methods=frozenset(methods),
        intercept=intercept,
        offers=offers,
        lacks=lacks,
        advice=advice,
        equivalent_if=equivalent_if,
    )
