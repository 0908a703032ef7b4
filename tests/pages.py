"""Parses HTML pages for tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "link", "img", "hr"}
HOSTILE = "<script>alert(1)</script>"
LOADS = {"src", "srcset", "data", "action", "poster", "background"}


class Page(HTMLParser):
    """A parsed page: its tags with their attributes, its text, and its errors of form."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes another tag")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def classed(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [tag for tag in self.tags if name in (tag[1].get("class") or "").split()]

    @property
    def mutants(self) -> list[str]:
        """Returns the ids of the listed mutants, in order."""
        return [attributes["id"] or "" for _, attributes in self.classed("mutant")]

    @property
    def cells(self) -> list[dict[str, str | None]]:
        """Returns the attributes of the cells of its maps that show a state."""
        return [a for tag, a in self.tags if tag == "td" and "title" in a]


def loads(text: str) -> list[str]:
    """Returns what the page `text` would fetch, and its links, except those to a public issue or
    within the page."""
    found = []
    for tag, attributes in Page(text).tags:
        found += [f"<{tag} {name}>" for name in LOADS & set(attributes)]
        found += [f"<{tag}>"] if tag in ("link", "img", "iframe", "object", "base") else []
        href = attributes.get("href")
        issue = tag == "a" and re.fullmatch(r"https://github\.com/.+/issues/\d+|#.+", href or "")
        found += [f"<{tag} href={href}>"] if href is not None and not issue else []
    return found + [word for word in ("url(", "@import", "fetch(", "import(") if word in text]
