"""Imports a library from a checkout of its repository, and hunts in it.

The scripts of this folder use it. `KVFUZZ_CHECKOUT` names the checkout; a script that is run puts
its first argument there.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from kvfuzz.cli.main import main
from kvfuzz.errors import InvalidSubject

VARIABLE = "KVFUZZ_CHECKOUT"


def library(module, folder=".", bare=()):
    """Returns `module` of the checkout, where `folder` is the one to import from.

    The packages in `bare` are entered without running their `__init__`, which may import what the
    tested path does not need. Raises InvalidSubject, which says in one line what is missing.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        raise InvalidSubject(f"set {VARIABLE} to the path of a checkout")
    top = (Path(root) / folder).resolve()
    file = top.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise InvalidSubject(f"{root} is no such checkout: there is no file {file}")
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    for name in bare:
        if name not in sys.modules:
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = [str(top.joinpath(*name.split(".")))]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidSubject(f"{module} needs {error.name}: install it with pip") from error


def stub(name, **attributes):
    """Puts an empty module where the package `name` is missing, with `attributes`. Only for what
    the tested path does not use, or uses under another name of torch."""
    parent, _, child = name.rpartition(".")
    if name in sys.modules or (find_spec(name) if not parent else not is_stub(parent)):
        return
    module = sys.modules[name] = Stub(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(attributes)
    if parent:
        setattr(sys.modules[parent], child, module)


def is_stub(name):
    """Whether the module `name` stands for a package that is not installed."""
    return isinstance(sys.modules.get(name), Stub)


class Stub(ModuleType):
    """A module that stands for a package that is not installed."""


def hunt(script, *options, subject="Subject"):
    """Fuzzes the `subject` of `script` in the checkout that the command line names, with seed 0,
    and exits: with 1 if it diverges. Further arguments go to `kvfuzz fuzz`, after `options`."""
    if len(sys.argv) < 2:
        sys.exit(main(["fuzz", f"{script}:{subject}"]))
    os.environ[VARIABLE] = sys.argv[1]
    sys.exit(main(["fuzz", f"{script}:{subject}", "--seed", "0", *options, *sys.argv[2:]]))
