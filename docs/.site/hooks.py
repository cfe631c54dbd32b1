"""Hooks of MkDocs: they add pages outside of ``docs/`` to the docs site, and convert links between files to its links.

In a Markdown page, a link is a path from the page's folder in the repository, as code hosts such as GitHub expect it.
If the link leads to another page of the site, it becomes a link of the site. If it leads to any other file of the
repository, it is replaced by its text, because the site has no such file.
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
#: Page of the repository outside of ``docs/`` -> path of the same page in the site.
OUTSIDE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "tests/README.md": "project/tests.md",
}
#: Pages that the site's search leaves out, because they also name everything that older versions of Holdfast had.
UNSEARCHED = {"CHANGELOG.md"}
_PLACES = {site: path for path, site in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside of ``docs/`` to the site's files; MkDocs calls this function."""
    for path, site in OUTSIDE.items():
        files.append(File.generated(config, site, abs_src_path=str(PROJECT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's Markdown, with links between files of the repository converted to links of the site."""
    source = page.file.src_uri
    path = _PLACES.get(source, f"docs/{source}")
    known = {file.src_uri for file in files}
    if path in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    return outside_of_code(markdown, lambda text: _LINK.sub(lambda link: site_link(link, path, source, known), text))


def outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to the text of a page, but not to its code blocks and inline code.

    Before ``change`` is called, each piece of code is replaced by a placeholder; afterwards the code is put back.
    """
    # The text of a link may be inline code. Then only the link's text is a placeholder, so `change` still finds the
    # link. A link that is completely inside code is hidden with the code.
    kept: list[str] = []

    def hide(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    return re.sub(r"\0(\d+)\0", lambda at: kept[int(at[1])], change(_CODE.sub(hide, markdown)))


def site_link(link: re.Match[str], path: str, source: str, known: set[str]) -> str:
    """One link of a page, converted to a link of the site, or to its text if the site does not have the target.

    ``path`` is the page's path in the repository, ``source`` its path in the site. ``known`` are the site's files.
    """
    picture, label, target = link.groups()
    file, hash_, anchor = target.partition("#")
    if "://" in target or not file:
        return link[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    site = OUTSIDE.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
    if site is None and (PROJECT / there).exists():
        return label
    if site is None or site not in known:
        return link[0]  # the target does not exist; MkDocs then reports the unchanged link
    relative = posixpath.relpath(site, posixpath.dirname(source) or ".")
    return f"{picture}[{label}]({relative}{hash_}{anchor})"
