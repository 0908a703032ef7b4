"""What `transformers:REST` names: a model type of the library, or a saved checkpoint."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfuzz.errors import InvalidSubject
from kvfuzz.near import near

# What a forward may call its cache, the present name first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "past_buckets_states", "mems", "state")

_USAGE = (
    "write transformers:MODEL_TYPE for a tiny model of that architecture (transformers:llama), "
    "or transformers:DIRECTORY for a saved checkpoint"
)


@dataclass(frozen=True)
class Source:
    """Where models come from: their classes, and the checkpoint if they are not random."""

    name: str
    library: Any  # the transformers module
    config_class: Any
    model_class: Any
    cache_name: str  # of the forward's argument, one of CACHE_NAMES
    checkpoint: Path | None
    settings: Mapping[str, Any]  # what the checkpoint's own configuration says


def source_of(rest: str) -> Source:
    """The source that `rest` names.

    Raises InvalidSubject if transformers is not installed, or knows no causal language model
    with a cache by that name, or the checkpoint is unreadable or needs its own code.
    """
    if not rest:
        raise InvalidSubject(f"transformers alone names no model: {_USAGE}")
    library = _library()
    # Not at the top: `import kvfuzz` stays light.
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    name = f"transformers:{rest}"
    # A folder that happens to be called as a model type is no checkpoint of it.
    is_checkpoint = (Path(rest) / "config.json").is_file() or rest not in CONFIG_MAPPING
    checkpoint = Path(rest) if Path(rest).is_dir() and is_checkpoint else None
    settings = _settings_of(checkpoint) if checkpoint else {}
    model_type = str(settings.get("model_type")) if checkpoint else rest
    if model_type not in CONFIG_MAPPING or model_type not in CAUSAL:
        if "auto_map" in settings:
            raise InvalidSubject(f"{name} needs its own remote code, which kvfuzz never runs")
        what = "causal language model" if model_type in CONFIG_MAPPING else "model type"
        raise InvalidSubject(
            f"transformers {library.__version__} has no {what} {model_type!r}"
            f"{near(model_type, CAUSAL)}: {_USAGE}"
        )
    try:
        config_class = CONFIG_MAPPING[model_type]
        model_class = library.AutoModelForCausalLM._model_mapping[config_class]
    except Exception as error:
        raise InvalidSubject(f"{name} does not import: {told(error)}") from error
    cache_name = _cache_name(name, model_class)
    return Source(name, library, config_class, model_class, cache_name, checkpoint, settings)


def told(error: BaseException) -> str:
    """`error` as one line. The library puts the reason on the second line, so all are kept."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _library() -> Any:
    """The transformers module, quiet and offline. Raises InvalidSubject if not installed."""
    # Read when transformers is imported, so it has to be set before.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import transformers
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise InvalidSubject(f"transformers does not import: {told(error)}") from error
        raise InvalidSubject(
            "transformers is not installed: pip install 'kvfuzz[transformers]'"
        ) from None
    except Exception as error:
        raise InvalidSubject(f"transformers does not import: {told(error)}") from error
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    return transformers


def _settings_of(checkpoint: Path) -> dict[str, Any]:
    """What the checkpoint's config.json says. Raises InvalidSubject if it has none to read."""
    path = checkpoint / "config.json"
    if not path.is_file():
        raise InvalidSubject(f"{checkpoint} is no checkpoint: it has no config.json")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidSubject(f"{path} cannot be read: {told(error)}") from error
    if not isinstance(settings, dict):
        raise InvalidSubject(f"{path} should hold an object, got {type(settings).__name__}")
    return settings


def _cache_name(name: str, model_class: Any) -> str:
    parameters = inspect.signature(model_class.forward).parameters
    for word in CACHE_NAMES:
        if word in parameters:
            return word
    raise InvalidSubject(
        f"{name} keeps no cache: {model_class.__name__}.forward takes none of "
        f"{', '.join(CACHE_NAMES)}"
    )
