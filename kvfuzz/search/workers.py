"""Runs the rounds of a hunt in worker processes."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from kvfuzz import errors
from kvfuzz.errors import Inconclusive, KvfuzzError
from kvfuzz.search.pool import Pool, Say, Work
from kvfuzz.search.rounds import Counted, Plan, Progress, run_round
from kvfuzz.search.tally import Tally
from kvfuzz.subjects.loading import load


def run_rounds_in_processes(
    plan: Plan, workers: int, progress: Progress | None, counted: Counted | None = None
) -> Tally:
    """Runs the rounds of `plan` as `run_rounds` does, and gives the same tally.

    Tallies are added in the order of the rounds, and rounds after the first failing one are
    ignored. Raises Inconclusive if a worker process dies.
    """
    died = f"a worker process died while running {plan.subject}"
    died += f" (run it again with -n 1 --seed {plan.seed} to see where)"
    total = Tally()
    size = len([*islice(plan.rounds(), workers)])
    with closing(Pool(partial(_start, plan), size, died)) as pool:
        for ended in pool.run_in_order(plan.rounds()):
            if ended.lost:
                raise Inconclusive(f"{died}: {ended.why}")
            if "error" in ended.result:
                name, message = ended.result["error"]
                raise getattr(errors, name)(message)
            total += Tally.from_json(ended.result["tally"])
            if progress is not None:
                progress(total.cases)
            if counted is not None:
                counted(total)
            if total.failures and not plan.keep_going:
                break
    return total


def _start(plan: Plan) -> Work:
    """Prepares a process for `plan`."""
    factory = load(plan.subject, plan.options)

    def run(index: int, _say: Say) -> dict[str, Any]:
        try:
            return {"tally": run_round(factory, plan, index).to_json()}
        except KvfuzzError as error:
            return {"error": [type(error).__name__, str(error)]}

    return run
