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

from kvfuzz.agreement import check, check_against, reference  # noqa: E402
from kvfuzz.injection import replaced  # noqa: E402
from mutants.limits import OutOfTime, time_limit  # noqa: E402

MUTANT = re.compile(r"x_(\w+)__mutmut_\d+")
SECONDS = 30.0


def main():
    """Judge every mutant, in order."""
    names = [name for name in vars(decoder) if MUTANT.fullmatch(name)]
    factory, cases = drawn()
    # The real functions without mutmut's own switch around them.
    for name in {MUTANT.fullmatch(name)[1] for name in names}:
        setattr(decoder, name, getattr(decoder, f"x_{name}__mutmut_orig"))
    subjects = [factory.subject(case) for case in cases]
    called = functions_of(lambda: reference(subjects[0], cases[0]))
    known = {}
    found = {}
    for name in names:
        function = MUTANT.fullmatch(name)[1]
        shared = function in called or function == "made_weights"
        with replaced([(decoder, function)], [getattr(decoder, name)]):
            found[name] = outcome(factory, cases, subjects, None if shared else known)
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


MUTANT_OR_REAL = re.compile(r"x_(\w+)__mutmut_(?:orig|\d+)")


def outcome(factory, cases, subjects, known):
    """killed, loud or survived. With `known` the uncached path is the real one, and what it says of
    a case is computed once."""
    try:
        with time_limit(SECONDS):
            for index, case in enumerate(cases):
                if known is None:
                    verdict = check(factory.subject(case), case, trace=False, probe=False)
                else:
                    if index not in known:
                        known[index] = reference(subjects[index], case)
                    verdict = check_against(known[index], subjects[index], case)
                if verdict.diverged:
                    return "loud" if verdict.error else "killed"
    except OutOfTime:
        return "timed_out"
    except Exception:
        return "loud"
    return "survived"


if __name__ == "__main__":
    main()
