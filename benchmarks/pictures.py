"""Draws docs/located.png and docs/score.png: pages that kvfuzz wrote, as Chromium shows them.

    tox -e pictures                        # or: python benchmarks/pictures.py
    python benchmarks/pictures.py --browser chrome

Takes two minutes, and needs Chromium on the PATH (Debian: apt-get install chromium) and the release
of transformers that constraints.txt pins, whose bamba has the bug in the first picture.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
HEIGHTS = {"located": 985, "score": 1010}
COLOURS = 128


@click.command()
@click.option("--browser", default="chromium", show_default=True, help="Name of the browser.")
@click.option("-n", "--workers", default=2, show_default=True, help="Processes for the score.")
def main(browser: str, workers: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_located_page(folder)
        write_score_page(folder, workers)
        for page, height in HEIGHTS.items():
            photograph(browser, folder / f"{page}.html", height, DOCS / f"{page}.png")


def write_located_page(folder: Path) -> None:
    """Finds bamba's bug and locates it, in `located.html`."""
    run_kvfuzz(folder, "fuzz", "transformers:bamba", "--seed", "0", "--no-locate", expected=1)
    (found,) = (folder / ".kvfuzz").glob("*.json")
    run_kvfuzz(folder, "locate", str(found), "--html", "located.html")


def write_score_page(folder: Path, workers: int) -> None:
    """Scores the zoo, in `score.html`."""
    options = ["--seed", "0", "-n", str(workers), "--html", "score.html"]
    run_kvfuzz(folder, "score", "zoo", *options)
    page = folder / "score.html"
    text = page.read_text(encoding="utf-8")
    # The kernel's name says which machine drew the picture.
    page.write_text(text.replace(platform.platform(), platform.system()), encoding="utf-8")


def run_kvfuzz(folder: Path, *arguments: str, expected: int = 0) -> None:
    """Runs a command of kvfuzz in `folder`; exits if it does not end with the `expected` code."""
    command = [sys.executable, "-m", "kvfuzz.cli.main", *arguments]
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code != expected:
        sys.exit(f"kvfuzz {' '.join(arguments)} ended with {code} instead of {expected}")


def photograph(browser: str, page: Path, height: int, picture: Path) -> None:
    """Writes the first `height` pixels of `page`, in few colours so that the file stays small."""
    shot = page.with_suffix(".png")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1000,{height}"]
    command = [browser, *options, f"--screenshot={shot}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(shot) as image:
        image.convert("RGB").quantize(COLOURS).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
