"""Loads what a command needs, quickly, and says what it loads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click

from kvfuzz.case.collector import kept_until_the_end


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Says on standard error that `what` is being loaded, which takes a second or more; sets torch
    to one thread: more make small models slower, and change rounding.

    Imports belong inside, and what builds the subject: meanwhile the garbage collector is off, and
    afterwards it leaves alone all that there is by then. Nearly all of it lives until the end, and
    torch's hundreds of thousands of objects would be searched again and again, during imports and
    at exit: that takes half as long as importing torch. If torch has been imported, the process is
    somebody else's: then nothing is said, and its collector stays as it is.
    """
    ours = "torch" not in sys.modules
    if ours:
        click.echo(f"loading {what} ...", err=True)
    with kept_until_the_end() if ours else nullcontext():
        import torch

        torch.set_num_threads(1)
        if ours:
            gc.freeze()
        yield
