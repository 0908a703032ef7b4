"""Begins a worker process. Nothing here imports torch, so that its import comes after this code."""

from __future__ import annotations

import gc
import pickle
from multiprocessing.connection import Connection


def begin(connection: Connection, called: bytes) -> None:
    """Calls the function that `called`, pickled with its arguments, names: with `connection` first.

    To read it imports torch; meanwhile the garbage collector is off, and the function turns it on.
    """
    gc.disable()
    function, *arguments = pickle.loads(called)
    function(connection, *arguments)
