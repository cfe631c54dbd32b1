"""Hooks of MkDocs: pages outside of ``docs/`` belong to the site, too, and links are written as code hosts read them.

A link on a page is a path from the page's folder in the repository. A link to another page becomes a link of the site.
A link to any other file of the repository keeps its text alone, because the site has no such file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).resolve().parents[2]
#: Pages of the repository that lie outside of ``docs/``, with their place in the site.
OUTSIDE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "tests/README.md": "project/tests.md",
}
#: Pages that the search leaves out: they name every word of former versions.
UNSEARCHED = {"CHANGELOG.md"}
_PLACES = {site: path for path, site in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside of ``docs/``."""
    for path, site in OUTSIDE.items():
        files.append(File.generated(config, site, abs_src_path=str(PROJECT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links of the site."""
    source = page.file.src_uri
    path = _PLACES.get(source, f"docs/{source}")
    known = {file.src_uri for file in files}
    if path in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    return outside_of_code(markdown, lambda text: _LINK.sub(lambda link: site_link(link, path, source, known), text))


def outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to a page, but not to its code."""
    # a label may be code: links are found first, and code around whole links is skipped
    kept: list[str] = []

    def hide(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    return re.sub(r"\0(\d+)\0", lambda at: kept[int(at[1])], change(_CODE.sub(hide, markdown)))


def site_link(link: re.Match[str], path: str, source: str, known: set[str]) -> str:
    """One link of the page at ``path`` of the repository, as a link of the site's file ``source``."""
    picture, label, target = link.groups()
    file, hash_, anchor = target.partition("#")
    if "://" in target or not file:
        return link[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    site = OUTSIDE.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
    if site is None and (PROJECT / there).exists():
        return label
    if site is None or site not in known:
        return link[0]  # MkDocs reports it
    relative = posixpath.relpath(site, posixpath.dirname(source) or ".")
    return f"{picture}[{label}]({relative}{hash_}{anchor})"
