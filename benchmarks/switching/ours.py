"""Run the mutants that mutmut has generated, each put in place of its function, in one process.

    python ours.py FOLDER

FOLDER holds what `mutmut run` wrote: `decoder.py`, with every mutant as a function beside the real
one. Prints the name of each mutant and what became of it, as one JSON object.
"""

import json
import re
import sys

import torch

torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])

import decoder  # noqa: E402
from property import drawn  # noqa: E402

from kvfuzz.oracle.agreement import check_against, quick_check  # noqa: E402
from kvfuzz.oracle.reference import find_reference  # noqa: E402
from kvfuzz.subjects.injection import replaced  # noqa: E402
from mutants.campaign.time_limit import OutOfTime, time_limit  # noqa: E402

MUTANT = re.compile(r"x_(\w+)__mutmut_\d+")
MUTANT_OR_REAL = re.compile(r"x_(\w+)__mutmut_(?:orig|\d+)")
SECONDS = 30.0


@torch.inference_mode()
def main():
    """Judge every mutant, in order."""
    names = [name for name in vars(decoder) if MUTANT.fullmatch(name)]
    factory, cases = drawn()
    # The real functions without mutmut's own switch around them.
    for name in {MUTANT.fullmatch(name)[1] for name in names}:
        setattr(decoder, name, getattr(decoder, f"x_{name}__mutmut_orig"))
    subjects = []
    building = functions_of(lambda: subjects.extend(map(factory.subject, cases)))
    uncached = functions_of(lambda: subjects[0].uncached(torch.zeros(1, 2, dtype=torch.int64)))
    known = {}
    found = {}
    for name in names:
        function = MUTANT.fullmatch(name)[1]
        with replaced([(decoder, function)], [getattr(decoder, name)]):
            mutated = map(factory.subject, cases) if function in building else subjects
            shared = function in building | uncached
            found[name] = outcome(cases, mutated, None if shared else known)
    print(json.dumps(found))


def functions_of(action):
    """The names of the decoder's functions that `action` calls: a mutant of another one leaves what
    it gives as it is."""
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == decoder.__file__:
            called.add(MUTANT_OR_REAL.sub(r"\1", frame.f_code.co_name))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return called


def outcome(cases, subjects, known):
    """killed, loud or survived. With `known` the uncached path is the real one, and what it says of
    a case is computed once."""
    try:
        with time_limit(SECONDS):
            for index, (case, subject) in enumerate(zip(cases, subjects, strict=True)):
                if known is None:
                    verdict = quick_check(subject, case)
                else:
                    verdict = against(known, index, subject, case)
                if verdict.diverged:
                    return "loud" if verdict.error else "killed"
    except OutOfTime:
        return "timed_out"
    except Exception:
        return "loud"
    return "survived"


def against(known, index, subject, case):
    """The verdict against what is known of case `index`: at first with the smallest tolerance there
    is, so that noise is measured where that decides alone."""
    for noise in (False, True):
        if (index, noise) not in known:
            known[index, noise] = find_reference(subject, case, noise=noise)
        verdict = check_against(known[index, noise], subject, case)
        if verdict.first is None:
            break
    return verdict


if __name__ == "__main__":
    main()
