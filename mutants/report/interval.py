"""Within what bounds a score lies, where the mutants are a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from mutants.campaign.result import DECIDED, Score, counted

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The percentages that a share of `population` mutants of `operator` lies between, as `decided`
    of them, drawn at random, say; `killed` of these were."""

    operator: str
    killed: int
    decided: int
    population: int
    low: float
    high: float

    @property
    def sentence(self) -> str:
        return (
            f"{self.operator}: {self.killed} of {self.decided} killed, drawn at random from "
            f"{self.population}; {100 * CONFIDENCE:g} % interval of the score of all of them: "
            f"{self.low:.1f} to {self.high:.1f} %"
        )


def wilson(killed: int, decided: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The Wilson score interval of a proportion, as percentages (Wilson, Journal of the American
    Statistical Association 22, 1927, page 209). Of nothing it is 0 to 100."""
    if not decided:
        return 0.0, 100.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = killed / decided
    middle = share + z * z / (2 * decided)
    spread = z * math.sqrt(share * (1 - share) / decided + z * z / (4 * decided * decided))
    bottom = 1 + z * z / decided
    return max(0.0, 100 * (middle - spread) / bottom), min(100.0, 100 * (middle + spread) / bottom)


def intervals(score: Score) -> list[Interval]:
    """One for each operator of which the mutants are a random sample: there are more than were
    run."""
    found = []
    for operator, population in sorted(score.sampled.items()):
        results = [each for each in score.results if each.operator == operator]
        if len(results) >= population:
            continue
        counts = counted(results)
        killed, decided = counts["killed"], sum(counts[state] for state in DECIDED)
        low, high = wilson(killed, decided)
        found.append(Interval(operator, killed, decided, population, low, high))
    return found


def sentences(score: Score) -> list[str]:
    """What there is to say of the precision of the score, if there is a score."""
    if score.percent is None:
        return []
    sampled = intervals(score)
    told = [interval.sentence for interval in sampled]
    if {each.operator for each in score.results} - {each.operator for each in sampled}:
        others = "other " if sampled else ""
        told.append(
            f"Every {others}mutant that was asked for was run: they are no sample, and have no "
            f"interval. The score holds for the {len(score.cases)} cases of seed {score.seed}."
        )
    return told
