"""A package with one fault, which tests of campaigns install."""

import sys

import pytest

from mutants.library.registry import library
from tests.mutants.campaigns import HEAD, KILLED, fault_text, install, path_with


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs one fault, by its body, which is then called `package.fault`; `head` runs when a
    process imports it. Returns its id and that of a mutant that is killed."""

    def made(body, head=""):
        note = f"open({str(tmp_path / 'started')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        install(tmp_path, "package", HEAD + note + head + fault_text("fault", body))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
        library.cache_clear()
        return ("package.fault", KILLED)

    yield made
    library.cache_clear()
    sys.modules.pop("package", None)
