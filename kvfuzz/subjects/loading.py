"""Makes a factory of subjects from a name, an object or a callable.

A name `SCHEME:REST` goes to the loader of its scheme: one of SCHEMES, or of those that installed
packages offer under the entry point group `kvfuzz.subjects`. Any other name is
`package.module:attribute` or `path/to/file.py:attribute`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kvfuzz.case.dtypes import DTYPES, NARROW
from kvfuzz.errors import InvalidSubject, KvfuzzError, UsageError, did_you_mean, one_line
from kvfuzz.subjects.builder import Builder
from kvfuzz.subjects.calibration import Calibration
from kvfuzz.subjects.float64 import TwinlessSubject
from kvfuzz.subjects.narrow import find_narrow, put_copy
from kvfuzz.subjects.native_dtype import Build, find_dtypes, native_dtype, put
from kvfuzz.subjects.protocol import Factory

SCHEMES = {
    "zoo": "kvfuzz.subjects.zoo.presets:factory",
    "transformers": "kvfuzz.subjects.transformers.factory:factory",
    "mlx": "kvfuzz.subjects.mlx:factory",
    "transformer_lens": "kvfuzz.subjects.transformer_lens:factory",
}


@dataclass(frozen=True)
class Options:
    """The user's settings for all cases: the device, the dtype (None: each case draws one), values
    of configuration fields, and a calibration of the subject, if there is one.

    Without `twin` no case runs in float64, and noise is measured in the subject's own dtype: for a
    model whose float64 twin does not fit into memory. No fault below that rounding is then seen.
    """

    device: str = "cpu"
    dtype: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    twin: bool = True

    def leeway(self, dtype: str) -> float:
        """Returns the factor of the allowed difference in `dtype`, by the calibration if any."""
        return self.calibration.leeway(dtype) if self.calibration else 1.0

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.dtype == "float64" and not self.twin:
            raise UsageError("dtype float64 needs the float64 twin: leave out --no-twin")
        _check_device(self.device)


Loader = Callable[[str, Options], Factory]
"""Makes a factory from the part of a name after the colon."""


def load(name: str, options: Options | None = None) -> Factory:
    """Returns the factory that `name` names. Raises InvalidSubject, with near matches."""
    options = options or Options()
    if name.startswith("<"):
        raise InvalidSubject(
            f"{name} was an object in a Python program and cannot be found by name: name a subject "
            "with --subject"
        )
    head, colon, rest = name.partition(":")
    if head in SCHEMES:
        module, _, attribute = SCHEMES[head].partition(":")
        loader: Loader = getattr(importlib.import_module(module), attribute)
        return _without_twin(loader(rest, options), options)
    for entry in entry_points(group="kvfuzz.subjects"):
        if entry.name == head:
            loader = entry.load()
            return _without_twin(loader(rest, options), options)
    if not colon or not rest:
        raise InvalidSubject(
            f"unknown subject {name!r}{_hint(head)}: name {', '.join(schemes())}, "
            "or package.module:attribute, or path/to/file.py:attribute"
        )
    return as_factory(_find_attribute(name, head, rest), name, options)


def import_named(name: str) -> None:
    """Imports the module that `name` names, if it names one, and builds no subject. Raises
    InvalidSubject, as `load` does."""
    head, colon, rest = name.partition(":")
    others = {*SCHEMES, *(entry.name for entry in entry_points(group="kvfuzz.subjects"))}
    if colon and rest and head not in others and not name.startswith("<"):
        _import(name, head)


def _hint(head: str) -> str:
    return ", which lacks :attribute" if Path(head).is_file() else did_you_mean(head, schemes())


def schemes() -> list[str]:
    """Returns the schemes that a name may begin with, sorted."""
    return sorted({*SCHEMES, *(entry.name for entry in entry_points(group="kvfuzz.subjects"))})


def as_factory(thing: Any, name: str | None = None, options: Options | None = None) -> Factory:
    """Returns the factory for a subject, for a class or callable that builds subjects, or for the
    name of one.

    A callable gets those of `seed`, `device`, the configuration's fields and, if the user asked for
    one, `dtype` (a torch.dtype) that its signature names. Cases draw the fields in its attribute
    `choices` {field: values}.
    """
    if isinstance(thing, Factory):
        return thing
    if isinstance(thing, str):
        return load(thing, options)
    options = options or Options()
    name = name or _find_name(thing)
    if hasattr(thing, "uncached") and not inspect.isclass(thing):
        return _without_twin(_wrap_subject(thing, name, options), options)
    if callable(thing):
        return _without_twin(_wrap_callable(thing, name, options), options)
    raise InvalidSubject(
        f"{name} is neither a subject nor a factory of one: it is a {type(thing).__name__}"
    )


def _without_twin(factory: Factory, options: Options) -> Factory:
    """Returns `factory`, or one of subjects that never run in float64 if the user asks for it."""
    if options.twin:
        return factory

    def build(seed: int, dtype: str, config: Mapping[str, Any]) -> Any:
        return TwinlessSubject(factory.build(seed, dtype, config))

    return replace(factory, build=build, dtypes=factory.dtypes[:1], narrow=())


def _wrap_subject(subject: Any, name: str, options: Options) -> Factory:
    if options.config:
        field_name = next(iter(options.config))
        raise UsageError(f"{name} is a subject, not a factory: it takes no setting {field_name!r}")
    native = native_dtype(subject, name)

    def build(_seed: int, dtype: str, _config: Mapping[str, Any]) -> Any:
        wanted = dtype if dtype and dtype != native else None
        if wanted in NARROW and options.dtype is None:
            return put_copy(subject, name, wanted, options.device)  # the user's own stays as it is
        return put(subject, name, wanted, options.device)

    made = Factory(name, build, _find_dtypes(build, {}, name, options), seeded=False)
    return _with_narrow(made, options, moved=True)


def _wrap_callable(call: Any, name: str, options: Options) -> Factory:
    try:
        parameters = dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        parameters = {}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(w for w in options.config if not takes_any and w not in parameters)
    if unknown:
        raise UsageError(
            f"{name} takes no setting {unknown[0]!r}{did_you_mean(unknown[0], parameters)}"
        )
    offered = _read_choices(call, name)
    choices = {word: values for word, values in offered.items() if word not in options.config}
    first = {word: values[0] for word, values in choices.items()} | dict(options.config)
    build = Builder(call, name, options.device, options.dtype, frozenset(parameters))
    try:
        dtypes = _find_dtypes(build, first, name, options)
    except KvfuzzError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidSubject(f"{name} could not be built: {one_line(error)}") from error
    seeded = "seed" in parameters
    made = Factory(
        name, build, dtypes, choices, dict(options.config), seeded, remarks=build.remarks
    )
    return _with_narrow(made, options, moved="dtype" not in parameters)


def _with_narrow(factory: Factory, options: Options, moved: bool) -> Factory:
    """Returns `factory` with the narrow dtypes that its subjects can be put in, if they are float32
    ones: a user who asks for one dtype gets that alone."""
    if options.dtype is not None or factory.dtypes[0] != "float32":
        return factory
    narrow, remarks = find_narrow(factory.build, factory.first_config(), moved)
    return replace(factory, narrow=narrow, remarks=[*factory.remarks, *remarks])


def _find_dtypes(
    build: Build, config: Mapping[str, Any], name: str, options: Options
) -> tuple[str, ...]:
    if options.twin:
        return find_dtypes(build, config, name, options.dtype)
    return (native_dtype(build(0, options.dtype or "", config), name),)


def _read_choices(call: Any, name: str) -> dict[str, tuple[Any, ...]]:
    """Returns the settings that `call` offers to draw. Raises InvalidSubject for values that JSON,
    and so a counterexample, cannot hold."""
    offered = getattr(call, "choices", {})
    try:
        choices = {str(word): tuple(values) for word, values in offered.items()}
        whole = json.loads(json.dumps({word: list(values) for word, values in choices.items()}))
    except (AttributeError, TypeError, ValueError):
        whole, choices = None, {}
    if whole != {word: list(values) for word, values in choices.items()} or not all(whole.values()):
        raise InvalidSubject(
            f"{name}.choices should map settings to non-empty lists of JSON values, got {offered!r}"
        )
    return choices


def _find_attribute(name: str, head: str, rest: str) -> Any:
    module = _import(name, head)
    thing: Any = module
    for word in rest.split("."):
        try:
            thing = getattr(thing, word)
        except AttributeError:
            known = [n for n in dir(thing) if not n.startswith("_")]
            raise InvalidSubject(
                f"{head} has no attribute {word!r}{did_you_mean(word, known)}"
            ) from None
    return thing


def _import(name: str, head: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if head.endswith(".py"):
            return _import_file(Path(head))
        return importlib.import_module(head)
    except ModuleNotFoundError as error:
        if error.name and (head == error.name or head.startswith(error.name + ".")):
            raise InvalidSubject(
                f"unknown subject {name!r}{did_you_mean(head, schemes())}: there is no module "
                f"{error.name!r} (a file is named path/to/file.py:attribute)"
            ) from None
        raise InvalidSubject(f"{head} does not import: {one_line(error)}") from error
    except InvalidSubject:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidSubject(f"{head} does not import: {one_line(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidSubject(f"there is no file {path}")
    path = path.resolve()
    # The path is part of the module name, so that two files called model.py are two modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"kvfuzz_subject_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSubject(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As in a script, the file can import its neighbours, also later when its functions run.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _find_name(thing: Any) -> str:
    """Returns `module:qualname` if that finds `thing` again, else a description in angle brackets,
    which tells `load` that no name finds it."""
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    if owner is thing and "<" not in owner.__qualname__ and owner.__module__ != "__main__":
        return f"{owner.__module__}:{owner.__qualname__}"
    words = owner.__qualname__.replace("<locals>.", "")
    return f"<{words}>" if owner is thing else f"<an instance of {words}>"


def _check_device(device: str) -> None:
    try:
        if float(torch.ones(1, device=device).sum()) == 1:
            return
        problem = "it does not compute"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = one_line(error)
    raise UsageError(f"device {device!r} is not available ({problem}): --device cpu always is")
