"""Finds what `transformers:REST` names: a model type of the library, or a saved checkpoint."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kvfuzz.errors import InvalidSubject, did_you_mean

# The names that a forward may give its cache argument, the present one first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "past_buckets_states", "mems", "state")

_USAGE = (
    "write transformers:MODEL_TYPE for a tiny model of that architecture (transformers:llama), "
    "or transformers:DIRECTORY for a saved checkpoint"
)


@dataclass(frozen=True)
class Source:
    """The classes that models are built from, and the checkpoint if they are not random."""

    name: str
    cache_module: Any  # where the library has its caches; an empty module where it has none
    auto: Any  # what builds a model of a configuration: AutoModelForCausalLM, or ...Seq2SeqLM
    config_class: Any
    model_class: Any
    cache_name: str  # of the forward's argument, one of CACHE_NAMES
    checkpoint: Path | None
    settings: Mapping[str, Any]  # the checkpoint's own configuration


def find_source(rest: str, decoder_alone: bool = False) -> Source:
    """Returns the source that `rest` names. An encoder-decoder model has both halves, unless
    `decoder_alone` asks for a class of the library that has only the decoder.

    Raises InvalidSubject if transformers is not installed, or knows no language model with a cache
    by that name, or the checkpoint is unreadable or needs its own code.
    """
    if not rest:
        raise InvalidSubject(f"transformers alone names no model: {_USAGE}")
    library = _library()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # not at the top: heavy

    # A folder that happens to have the name of a model type is no checkpoint.
    is_checkpoint = (Path(rest) / "config.json").is_file() or rest not in CONFIG_MAPPING
    checkpoint = Path(rest) if Path(rest).is_dir() and is_checkpoint else None
    settings = _settings_of(checkpoint) if checkpoint else {}
    model_type = str(settings.get("model_type")) if checkpoint else rest
    alone = decoder_alone or settings.get("is_encoder_decoder") is False
    name = f"transformers:{rest}"
    auto, model_classes = _auto_class(library, name, model_type, alone, settings)
    try:
        config_class = CONFIG_MAPPING[model_type]
        model_class = model_classes[config_class]
    except Exception as error:
        raise InvalidSubject(f"{name} does not import: {describe(error)}") from error
    cache = _cache_name(name, model_class)
    caches = _cache_module()
    return Source(name, caches, auto, config_class, model_class, cache, checkpoint, settings)


def _auto_class(
    library: Any, name: str, model_type: str, alone: bool, settings: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Returns the class that builds models of `model_type`, and its mapping from the class of a
    configuration to that of the model: both halves, or the decoder `alone`. Raises InvalidSubject
    if there is none."""
    import transformers.models.auto.modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    halves = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    known = causal if alone else {**causal, **halves}
    if model_type in CONFIG_MAPPING and model_type in known:
        if model_type in halves and not alone:
            return library.AutoModelForSeq2SeqLM, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        return library.AutoModelForCausalLM, auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if "auto_map" in settings:
        raise InvalidSubject(f"{name} needs its own remote code, which kvfuzz never runs")
    what = "language model" if model_type in CONFIG_MAPPING else "model type"
    raise InvalidSubject(
        f"transformers {library.__version__} has no {what} {model_type!r}"
        f"{did_you_mean(model_type, known)}: {_USAGE}"
    )


def _cache_module() -> Any:
    """Returns the module of the library's caches, an empty one in releases without."""
    try:
        import transformers.cache_utils as found
    except ModuleNotFoundError:
        return ModuleType("transformers.cache_utils")
    return found


def first_present(words: Iterable[str], there: Container[str]) -> str | None:
    """Returns the first of `words` that is `there`."""
    return next((word for word in words if word in there), None)


def describe(error: BaseException) -> str:
    """`error` in one line. The library puts the reason on the second line, so all are kept."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _library() -> Any:
    """Imports transformers, quiet and offline. Raises InvalidSubject if it is not installed."""
    # The library reads these when it is imported, so they have to be set before.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    try:
        import transformers
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise InvalidSubject(f"transformers does not import: {describe(error)}") from error
        raise InvalidSubject(
            "transformers is not installed: pip install 'kvfuzz[transformers]'"
        ) from None
    except Exception as error:
        raise InvalidSubject(f"transformers does not import: {describe(error)}") from error
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    return transformers


def _settings_of(checkpoint: Path) -> dict[str, Any]:
    """Reads the checkpoint's config.json. Raises InvalidSubject if it cannot."""
    path = checkpoint / "config.json"
    if not path.is_file():
        raise InvalidSubject(f"{checkpoint} is no checkpoint: it has no config.json")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidSubject(f"{path} cannot be read: {describe(error)}") from error
    if not isinstance(settings, dict):
        raise InvalidSubject(f"{path} should hold an object, got {type(settings).__name__}")
    return settings


def _cache_name(name: str, model_class: Any) -> str:
    parameters = inspect.signature(model_class.forward).parameters
    word = first_present(CACHE_NAMES, parameters)
    if word is not None:
        return word
    raise InvalidSubject(
        f"{name} keeps no cache: {model_class.__name__}.forward takes none of "
        f"{', '.join(CACHE_NAMES)}"
    )
