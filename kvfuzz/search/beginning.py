"""Begins a worker process. Nothing here imports torch, so that its import comes after this code."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Mapping
from multiprocessing.connection import Connection


def begin(connection: Connection, environment: Mapping[str, str], called: bytes) -> None:
    """Calls the function that `called`, pickled with its arguments, names: with `connection` first,
    and in the environment of the parent.

    To read it may import torch; meanwhile the garbage collector is off, and the function turns it
    on.
    """
    gc.disable()
    os.environ.clear()
    os.environ.update(environment)
    function, *arguments = pickle.loads(called)
    function(connection, *arguments)
