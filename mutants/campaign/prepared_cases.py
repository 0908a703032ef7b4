"""The cases of a campaign, with their uncached reference computed once per process."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cached_property

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.oracle.agreement import check_against
from kvfuzz.search.judge import KnownReference, judge_by
from kvfuzz.search.rounds import Plan
from kvfuzz.subjects.protocol import Factory
from mutants.campaign.campaign import Campaign
from mutants.campaign.case_order import CaseTraits, order_cases
from mutants.campaign.time_limit import OutOfTime, time_limit
from mutants.mutant import VACUITY, Mutant

SECONDS_FOR_CLEAN = 60.0
"""The clean subject has at least this long for one case, however little time a mutant has."""


class Unsound(Exception):
    """The unmutated subject breaks the law that a mutant is judged by, so there is no score."""


@dataclass(frozen=True)
class PreparedCases:
    """The cases of `campaign` on the subjects of `factory`.

    `references` holds the uncached reference of each case that was asked for, by case number and
    settings, and `witnesses` those of cases that were not drawn. `clean` holds the positions
    compared on the clean subject, by number, settings and a law.
    """

    factory: Factory
    campaign: Campaign
    references: dict[tuple[int, str], KnownReference] = field(default_factory=dict)
    clean: dict[tuple[int, str, str], int] = field(default_factory=dict)
    witnesses: dict[str, KnownReference] = field(default_factory=dict)

    def case(self, index: int, mutant: Mutant | None = None) -> Case:
        """Case number `index`, with the settings that `mutant` needs."""
        drawn = self.campaign.cases[index]
        return drawn if mutant is None else mutant.with_required_config(drawn)

    def order(self, mutant: Mutant) -> list[int]:
        """The case numbers in the order in which `mutant` runs them: as drawn if it runs all."""
        if self.campaign.matrix:
            return list(range(len(self.campaign.cases)))
        return order_cases(mutant, self.campaign.cases, self._traits)

    @cached_property
    def _traits(self) -> tuple[CaseTraits, ...]:
        return tuple(CaseTraits.of(case) for case in self.campaign.cases)

    @property
    def seconds_for_clean(self) -> float:
        """Seconds that the clean subject has for one case."""
        return max(SECONDS_FOR_CLEAN, self.campaign.limits.seconds)

    def key(self, index: int, case: Case) -> tuple[int, str]:
        """The key of `case`, which is case number `index` with some settings, in `references`."""
        return index, repr(sorted(case.config.items()))

    def reference(self, index: int, mutant: Mutant | None = None) -> KnownReference:
        """Returns case number `index`, with the settings that `mutant` needs, and its reference.

        Raises Unsound if these settings are not the drawn ones and the clean subject diverges: the
        baseline has not judged it there. That is not asked for a mutant that is declared
        equivalent, which runs every case: if one kills it, it is invalid.
        """
        case = self.case(index, mutant)
        key = self.key(index, case)
        if key not in self.references:
            subject = self.factory.subject(case)
            leeway = self.campaign.plan.options.leeway(case.dtype)
            self.references[key] = KnownReference.find(subject, case, leeway)
        known = self.references[key]
        if mutant is not None and not mutant.equivalent and case != self.campaign.cases[index]:
            self.require_clean(known, index, "agreement")
        return known

    def declared(self, case: Case) -> KnownReference:
        """Returns the reference of a witness that mutants declare. Raises KvfuzzError if it does
        not fit the subject."""
        key = repr(case)
        if key not in self.witnesses:
            leeway = self.campaign.plan.options.leeway(case.dtype)
            self.witnesses[key] = KnownReference.find(self.factory.subject(case), case, leeway)
        return self.witnesses[key]

    def require_clean(self, known: KnownReference, index: int, law: str) -> int:
        """Judges the unmutated subject by `law`, once for all mutants; returns the number of
        positions compared, as of `KnownReference.check`. Raises Unsound if it diverges."""
        key = (*self.key(index, known.case), law)
        if key not in self.clean:
            verdict = _judge_clean(law, known)
            if verdict.diverged:
                raise Unsound(self._why_unsound(known.case, index))
            self.clean[key] = verdict.positions
        return self.clean[key]

    def _why_unsound(self, case: Case, index: int) -> str:
        absent = object()
        drawn = self.campaign.cases[index].config
        changed = {n: v for n, v in case.config.items() if drawn.get(n, absent) != v}
        settings = f" with {', '.join(f'{n} {v}' for n, v in changed.items())}" if changed else ""
        return (
            f"the unmutated {self.factory.name} diverges on case {index}{settings}: "
            f"run {_fuzz_command(self.campaign.plan)}, or leave out known divergences with "
            "--expected FILE"
        )


def check_baseline(prepared: PreparedCases) -> str | None:
    """Judges the unmutated subject on every case as drawn; returns why there can be no score, or
    None. Cases with the settings that a mutant needs are judged when they are prepared."""
    compared = False
    for index in range(len(prepared.campaign.cases)):
        try:
            with time_limit(prepared.seconds_for_clean):
                known = prepared.reference(index)
                prepared.require_clean(known, index, "agreement")
                # One case is enough, and nearly always the first.
                compared = compared or _compares(known)
        except Unsound as unsound:
            return str(unsound)
        except OutOfTime:
            return (
                f"the unmutated {prepared.factory.name} takes over "
                f"{prepared.seconds_for_clean:g} s for case {index}"
            )
    return None if compared else f"nothing could be compared on {prepared.factory.name}"


def _compares(known: KnownReference) -> bool:
    """Returns whether some position of a case on which the clean subject agrees is not weak."""
    return check_against(known.expected, known.subject, known.case).positions > 0


def _judge_clean(law: str, known: KnownReference) -> Verdict:
    """The verdict by `law` on the unmutated subject."""
    if law in ("agreement", VACUITY):
        return known.check(known.subject).verdict
    return judge_by(law, known.subject, known.case, known=known)


def _fuzz_command(plan: Plan) -> str:
    """The command that fuzzes the unmutated subject on the cases of `plan`."""
    command = (
        f"kvfuzz fuzz {shlex.quote(plan.subject)} --seed {plan.seed} --examples {plan.examples}"
    )
    options = plan.options
    command += f" --dtype {options.dtype}" if options.dtype else ""
    command += f" --device {options.device}" if options.device != "cpu" else ""
    return command + (" and the same settings" if options.config else "")
