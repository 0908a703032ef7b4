"""Imports what every worker process needs, once, in the process that they are forked from.

Nothing may run torch there: a fork after that crashes. The garbage collector stays off, also while
further modules are imported; each worker turns it on.
"""

import gc

gc.disable()

import hypothesis  # noqa: E402
import torch  # noqa: E402

__all__ = ["hypothesis", "torch"]
