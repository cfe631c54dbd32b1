"""Builds the docs site, as ``make docs`` does, and parses its pages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent


def build(folder: Path, config: Path = PROJECT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the site into a folder; any warning fails the build."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(folder),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@dataclass
class HtmlPage(HTMLParser):
    """The anchors, links and loaded files of one page of the site."""

    path: Path
    ids: set[str] = field(default_factory=set)
    #: Addresses that a reader can follow.
    links: list[str] = field(default_factory=list)
    #: Addresses that a browser loads automatically.
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the anchor and the addresses of an element."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") not in {"canonical", "prev", "next"}:
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def lost(pages: dict[Path, HtmlPage]) -> list[str]:
    """The links that lead to no file or anchor of the site."""
    found = []
    for page in pages.values():
        for link in {*page.links, *page.loaded}:
            file, _, anchor = link.partition("#")
            if "://" in link or link.startswith(("mailto:", "javascript:", "data:")):
                continue
            there = (page.path.parent / file.partition("?")[0]).resolve() if file else page.path
            there = there / "index.html" if there.is_dir() else there
            wanted = anchor if there in pages and not anchor.startswith("__") else ""
            if not there.is_file() or (wanted and wanted not in pages[there].ids):
                found.append(f"{page.path.name}: {link}")
    return sorted(found)


def pages_of(folder: Path) -> dict[Path, HtmlPage]:
    """All pages of a built site, except the error page, whose addresses are relative to the site's root."""
    return {path: HtmlPage(path) for path in sorted(folder.resolve().rglob("*.html")) if path.name != "404.html"}
