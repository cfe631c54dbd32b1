"""The menu of the served docs, and the search in the docs. Both are built from the pages, without scripts.

Invariants:
    - A search finds a section if every word of the query is in the section's text or in its page's title.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: Maximum number of sections that a search lists.
FOUND_MAX = 30
#: Length of the excerpt that a search shows of each section, characters.
_EXCERPT = 200
#: Weight of a word in a section's heading; a word in the section's text has weight 1.
_HEADING_WEIGHT = 10
_HEADING = re.compile(r"^(#{1,4}) +(.*?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
#: Folder of the docs -> the title in the menu above the folder's pages, in the order of the menu.
_FOLDERS = {
    ".": "Pages",
    "tasks": "Tasks",
    "coming-from": "Coming from",
    "reference": "Reference",
    "decisions": "Decisions",
}


@dataclass(frozen=True, slots=True)
class Section:
    """The text below one heading of a page. ``page`` is the page's path below the docs folder."""

    page: str
    title: str
    heading: str
    text: str


@lru_cache(maxsize=4)
def sections_of(folder: Path) -> tuple[Section, ...]:
    """All sections of all pages, in the order of their paths."""
    found: list[Section] = []
    for file in sorted(folder.rglob("*.md")):
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        text = file.read_text(encoding="utf-8")
        # A comment in a code block begins with `#`, as a heading does. So each such `#` is replaced by a space before
        # headings are searched.
        hidden = _FENCE.sub(lambda block: re.sub(r"(?m)^#", " ", block[0]), text)
        heads = list(_HEADING.finditer(hidden))
        title = _plain(heads[0][2]) if heads else file.stem
        ends = [each.start() for each in heads[1:]] + [len(text)]
        page = file.relative_to(folder).as_posix()
        found += [
            Section(page, title, _plain(head[2]), text[head.end() : end]) for head, end in zip(heads, ends, strict=True)
        ]
    return tuple(found)


def search(sections: Sequence[Section], query: str) -> list[Section]:
    """The sections that contain all words of the query, best match first. A word in a heading has more weight."""
    words = query.lower().split()
    scored = []
    for each in sections:
        heading, text, title = each.heading.lower(), each.text.lower(), each.title.lower()
        if words and all(word in heading or word in text or word in title for word in words):
            scored.append((sum(_HEADING_WEIGHT * (word in heading) + min(text.count(word), 5) for word in words), each))
    scored.sort(key=lambda pair: -pair[0])
    return [each for _, each in scored[:FOUND_MAX]]


@lru_cache(maxsize=8)
def menu(folder: Path, at: str) -> str:
    """The menu as HTML: all pages by folder; ``at`` is the URL path of the docs."""
    titles: dict[str, str] = {}
    for each in sections_of(folder):
        titles.setdefault(each.page, each.title)
    groups: dict[str, list[str]] = {}
    for page in titles:
        groups.setdefault(page.rpartition("/")[0] or ".", []).append(page)
    made = []
    for name in [*(each for each in _FOLDERS if each in groups), *(each for each in groups if each not in _FOLDERS)]:
        rows = "".join(
            f'<li><a href="{_quoted(f"{at}/{page}")}">{html.escape(titles[page])}</a></li>'
            for page in sorted(groups[name], key=lambda one: (one != "index.md", titles[one].lower()))
        )
        opened = " open" if name == "." else ""
        made.append(
            f"<details{opened}><summary>{html.escape(_FOLDERS.get(name, name))}</summary><ul>{rows}</ul></details>"
        )
    return "".join(made)


def form(at: str, query: str = "") -> str:
    """The HTML of the input field for a search."""
    return (
        f'<form action="{_quoted(f"{at}/search")}" role="search"><input type="search" name="q" '
        f'value="{_quoted(query)}" placeholder="Search the docs" aria-label="Search the docs"></form>'
    )


def results(folder: Path, at: str, query: str, anchor_of: Callable[[str], str]) -> str:
    """The result of a search as HTML. ``anchor_of`` is a function that returns the anchor of a heading."""
    found = search(sections_of(folder), query)
    head = f"<h1>Search: {html.escape(query)}</h1>"
    if not found:
        return f"{head}<p>No section has all of these words. Try fewer words, or a part of a word.</p>"
    rows = "".join(
        f'<li><a href="{_quoted(f"{at}/{each.page}#{anchor_of(each.heading)}")}">{html.escape(each.title)}'
        f"{'' if each.heading == each.title else ': ' + html.escape(each.heading)}</a>"
        f"<br>{html.escape(_excerpt(each.text, query))}</li>"
        for each in found
    )
    return f"{head}<ul>{rows}</ul>"


def _excerpt(text: str, query: str) -> str:
    flat = " ".join(_plain(text).split())
    places = [at for word in query.lower().split() if (at := flat.lower().find(word)) >= 0]
    begin = max(0, min(places, default=0) - _EXCERPT // 3)
    return ("… " if begin else "") + flat[begin : begin + _EXCERPT]


def _plain(text: str) -> str:
    """Markdown text without its markup; of a link, only the text is kept."""
    return re.sub(r"[`*|]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)).strip()


def _quoted(text: str) -> str:
    return html.escape(text, quote=True)
