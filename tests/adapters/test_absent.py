"""A library that is not installed, or does not import, is refused in one line."""

from __future__ import annotations

import sys

import pytest

from kvfuzz.errors import InvalidSubject
from kvfuzz.subjects import mlx, transformer_lens
from kvfuzz.subjects.loading import Options

ADAPTERS = [
    (mlx.factory, "mlx_lm", "llama", "kvfuzz[mlx]"),
    (transformer_lens.factory, "transformer_lens", "alibi", "kvfuzz[transformer-lens]"),
]


@pytest.mark.parametrize(("factory", "module", "rest", "extra"), ADAPTERS)
def test_what_is_not_installed(factory, module, rest, extra, monkeypatch):
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"{module}.models", raising=False)
    with pytest.raises(InvalidSubject, match="is not installed: pip install") as caught:
        factory(rest, Options())
    assert f"'{extra}'" in str(caught.value)


@pytest.mark.parametrize(("factory", "module", "rest", "extra"), ADAPTERS)
def test_what_does_not_import(factory, module, rest, extra, monkeypatch, tmp_path):
    """What it lacks itself is not mistaken for its own absence."""
    folder = tmp_path / module / "models"
    folder.mkdir(parents=True)
    for place in (tmp_path / module, folder):
        (place / "__init__.py").write_text("import not_there_at_all\n")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(sys.modules, f"{module}.models", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidSubject, match="does not import: .*not_there_at_all"):
        factory(rest, Options())
