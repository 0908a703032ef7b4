"""A generic mutant: it fits any subject, and is checked on the subject before it is scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvfuzz.case.case import Case
from kvfuzz.errors import InvalidSubject, KvfuzzError, one_line
from kvfuzz.subjects.protocol import Factory, offers_of
from mutants.generic.probe_programs import probes, raises
from mutants.generic.wrapper import Interceptor, WrappedSubject
from mutants.mutant import ANY, Mutant, identify

EquivalenceCheck = Callable[[Any, str], str | None]
"""Takes the clean subject and the dtype of its cases. Returns why a fault cannot show there, as it
measures; None if it can."""


@dataclass(frozen=True)
class GenericMutant(Mutant):
    """A fault that fits any subject.

    `intercept` runs in place of the subject's `methods`. `offers` are the offers that the fault
    needs. `lacks` says what the subject lacks if the fault finds nothing to change. `equivalent_if`
    measures whether the design of the subject hides the fault.
    """

    methods: frozenset[str] = frozenset()
    intercept: Interceptor = lambda call: call.go()
    offers: tuple[str, ...] = ()
    lacks: str = "nothing that it changes was met"
    equivalent_if: EquivalenceCheck | None = None

    def into(self, subject: Any, dtype: str, size: float | None = None) -> WrappedSubject:  # noqa: ARG002
        """Returns `subject` with this fault around its methods."""
        return WrappedSubject(subject, self.methods, self.intercept)

    def resolve(self, factory: Factory, cases: Sequence[Case]) -> Mutant:
        """Returns this mutant as it applies to the subjects of `factory` that `cases` run on.

        It is inapplicable if they lack an offer that it needs, or if it finds nothing to change in
        the first MOST settings; equivalent if their design hides it in all settings. Raises
        InvalidSubject if that cannot be measured.
        """
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
        """Whether the fault finds something to change in the subject of `first`."""
        subject = factory.subject(first)
        for case in probes(subject, first, offers_of(subject, factory.name)):
            faulty = self.into(subject, case.dtype)
            # A fault that raises before it acts counts as acting; the campaign calls it loud.
            if (raises(faulty, case) and not raises(subject, case)) or faulty.reached:
                return True
        return False

    def _hidden(self, factory: Factory, firsts: Sequence[Case]) -> str | None:
        """Returns why the fault shows with no setting; None if it shows with one."""
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
"""Settings in which a fault may find something to change."""
NO_OFFER = {"positions": "takes no positions", "mask": "takes no mask"}


def generic_mutant(
    fault: Callable[..., Any], methods: tuple[str, ...], intercept: Interceptor, **declared: Any
) -> GenericMutant:
    """Returns the generic mutant whose function is `fault`, with what is `declared` as fields of
    GenericMutant. Raises ValueError for a function without a docstring."""
    return GenericMutant(
        **identify(fault),
        **declared,
        targets=(),
        site=None,
        witness=None,
        subject=ANY,
        methods=frozenset(methods),
        intercept=intercept,
    )
