"""The latent law: where the logits agree, the states inside the two paths agree as well.

Faults that offset each other break it. It is checked only on request, since what breaks it may be
harmless.
"""

from __future__ import annotations

import torch

from kvfuzz.case.case import Case
from kvfuzz.case.verdict import Verdict
from kvfuzz.errors import KvfuzzError, one_line
from kvfuzz.localize.location import Latent, find_latents
from kvfuzz.localize.operations.first_difference import latent_cells
from kvfuzz.localize.operations.traced_case import trace_case
from kvfuzz.localize.traced_states import (
    ExpectedStates,
    can_trace,
    compare_sites,
    difference_map,
    logits_differ,
)
from kvfuzz.subjects.protocol import Subject
from kvfuzz.subjects.run import CachedPathRaised, Refused, seeded
from kvfuzz.subjects.trace import Site


def check_latent(subject: Subject, case: Case, expected: ExpectedStates | None = None) -> Verdict:
    """Returns the verdict on `case` by the latent law: discarded where the logits differ, where no
    state can be seen and where a path raises.

    `expected` are the states of the uncached path of a subject that reports them, if known.
    """
    with seeded(case.seed), torch.no_grad():
        try:
            first, states = find_first_latent(subject, case, expected)
        except KvfuzzError:
            raise
        except Refused as refused:
            return Verdict("discarded", law="latent", reason=str(refused))
        except Exception as error:
            cause = error.error if isinstance(error, CachedPathRaised) else error
            return Verdict("discarded", law="latent", reason=f"a path raised {one_line(cause)}")
    if not states:
        return Verdict("discarded", law="latent", reason="the logits differ, or no state is seen")
    if first is None:
        return Verdict("agreed", positions=states, law="latent")
    where = f"{Site.parse(first.site).prose} differs in step {first.step + 1}"
    finding = f"latent: the logits agree, and the {where}, by {first.excess:.3g} times the allowed"
    return Verdict("diverged", excess=first.excess, law="latent", finding=finding)


def find_first_latent(
    subject: Subject, case: Case, expected: ExpectedStates | None = None
) -> tuple[Latent | None, int]:
    """Returns the first state that differs although the logits agree, None if none does, and how
    many states were compared: zero where the logits differ or no state can be seen.

    `expected` are the states of the uncached path of a subject that reports them, if known.
    """
    if can_trace(subject):
        states = list(compare_sites(subject, case, expected))
        if logits_differ(states):
            return None, 0
        count = 0
        for one in states:
            count += one.excess.numel()
            if one.differs:
                return find_latents(difference_map([one]))[0], count
        return None, count
    traced = trace_case(subject, case)
    if traced.diverging_step is not None or not traced.comparisons:
        return None, 0
    return next(iter(find_latents(latent_cells(traced))), None), len(traced.comparisons)
