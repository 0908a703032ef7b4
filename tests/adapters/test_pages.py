"""The code in docs/subjects.md and docs/adding-an-adapter.md does what the pages say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvfuzz
from kvfuzz.subjects.loading import load

ROOT = Path(__file__).parents[2]


def blocks(page):
    """The Python blocks of a page that begin with the name of their file, by that name."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"^```python\n(# (\S+\.py)\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    return {name: code for code, name in found}


@pytest.mark.parametrize(
    ("subject", "offers"),
    [
        ("my_decoder.py:MyDecoder", set()),
        ("my_cropping_decoder.py:MyCroppingDecoder", {"crop", "reorder", "copy"}),
    ],
)
def test_the_decoders_of_the_page_agree(tmp_path, subject, offers):
    """As they are written there, and with what the page says that they offer."""
    for name, code in blocks("subjects.md").items():
        (tmp_path / name).write_text(code)
    factory = load(f"{tmp_path}/{subject}")
    assert factory.limits().offers == offers
    assert factory.choices == {"window": (None, 4)}
    assert factory.dtypes == ("float32", "float64")
    assert kvfuzz.fuzz(factory, examples=30, seed=0).verdict == "agreed"


def test_an_adapter_is_one_file_and_one_line(tmp_path):
    """The page's file, its line and its test, in a copy of the package, pass."""
    shutil.copytree(ROOT / "kvfuzz", tmp_path / "kvfuzz")
    page = (ROOT / "docs" / "adding-an-adapter.md").read_text()
    for name, code in blocks("adding-an-adapter.md").items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    (line,) = re.findall(r"^\+( .*)$", page, re.MULTILINE)
    loading = tmp_path / "kvfuzz" / "subjects" / "loading.py"
    loading.write_text(loading.read_text().replace("SCHEMES = {\n", f"SCHEMES = {{\n{line}\n"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/adapters"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
