"""Serves Holdfast's documentation under ``/docs`` of Dagster's webserver; assets and checks link to its pages.

The pages are part of the installed package, so they fit the version and need no network. Each page has a menu of all
pages and a field for a search.

Invariants:
    - Only Markdown pages, pictures and JSON documents of the docs folder are served, and searches. No script runs.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.infra.installation import IMPORT_ROOT
from holdfast.orchestration.host.front import page_index

#: URL path under which the docs are served.
AT = "/docs"
#: Folder with the Markdown pages; it is inside the installed package, or linked to ``docs/`` in a checkout.
FOLDER = IMPORT_ROOT / "holdfast" / "docs"

#: The kinds of files beside the pages: pictures, and the OpenAPI document.
_FILES = {".png", ".svg", ".json"}
#: Headers of each page that Holdfast adds: no script runs, and no other site shows the page.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}
#: The style of each page that Holdfast adds.
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:78em;margin:2em auto;padding:0 1em;color:#1c2024;
display:grid;grid-template-columns:15em minmax(0,1fr);gap:2em}@media(max-width:60em){body{display:block}}
nav ul{list-style:none;padding:0;margin:.3em 0 1em}nav li{margin:.15em 0}nav summary{cursor:pointer;font-weight:600}
nav{font-size:.9em}input{width:100%;box-sizing:border-box;padding:.4em;margin:.6em 0 1em;font:inherit}
pre{background:#f4f5f6;padding:.8em;overflow:auto;line-height:1.35}code{background:#f4f5f6;font-size:.92em}
table{border-collapse:collapse;display:block;overflow:auto}td,th{border:1px solid #d5d8dc;padding:.3em .6em;
text-align:left;vertical-align:top}img{max-width:100%}a{color:#0b6e63}
@media(prefers-color-scheme:dark){body{background:#16191d;color:#dfe3e8}pre,code{background:#22272d}
td,th{border-color:#3a4149}a{color:#5cc9bb}}"""
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: Holdfast</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head>
<body><nav><a href="{home}">Holdfast</a>{form}{menu}</nav><main>{body}</main></body></html>"""


class WithPages:
    """ASGI application that serves the docs under ``prefix`` plus :data:`AT`; all other requests go to ``app``."""

    def __init__(self, app: ASGIApp, prefix: str = "", folder: Path = FOLDER) -> None:
        self._app, self._at, self._folder = app, prefix + AT, folder.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        ours = path == self._at or path.startswith(f"{self._at}/")
        if not ours or scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("q", [""])[0].strip()
        answer = await run_in_threadpool(self._answer, path.removeprefix(self._at).removeprefix("/"), query)
        await answer(scope, receive, send)

    def _answer(self, name: str, query: str) -> Response:
        if not name or (name == "search" and not query):
            return RedirectResponse(f"{self._at}/index.md")
        if name == "search":
            return self._page(page_index.results(self._folder, self._at, query, anchor_of), 200, query)
        file = (self._folder / name).resolve()
        if file.is_relative_to(self._folder) and file.is_file():
            if file.suffix == ".md":
                depth = len(file.relative_to(self._folder).parts) - 1
                return self._page(rendered(file.read_text(encoding="utf-8"), depth), 200)
            if file.suffix in _FILES:
                return FileResponse(file, headers=HEADERS)
        text = f"<h1>No such page</h1><p>The docs of this version have no {html.escape(name)}.</p>"
        return self._page(text, 404)

    def _page(self, body: str, status: int, query: str = "") -> Response:
        found = re.search(r"<h1[^>]*>(.*?)</h1>", body)
        title = re.sub(r"<[^>]*>", "", found[1]) if found else "Docs"
        page = _PAGE.format(
            title=title,
            style=STYLE,
            home=html.escape(f"{self._at}/index.md", quote=True),
            form=page_index.form(self._at, query),
            menu=page_index.menu(self._folder, self._at),
            body=body,
        )
        return HTMLResponse(page, status, HEADERS)


@lru_cache(maxsize=256)
def rendered(text: str, depth: int = 0) -> str:
    """Markdown converted to HTML. Headings get the same anchors as on the documentation site.

    ``depth`` is the number of folders between the docs folder and the page. Links to files outside the docs folder
    become plain text.
    """
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    parts = reader.parse(text)
    for part in parts:
        if part.type == "inline":
            part.children = _inside(part.children or [], "../" * (depth + 1))
    for opening, inline in pairwise(parts):
        if opening.type == "heading_open":
            words = "".join(each.content for each in inline.children or () if each.type in ("text", "code_inline"))
            opening.attrSet("id", anchor_of(words))
    made: str = reader.renderer.render(parts, reader.options, {})
    return made


def _inside(parts: list[Token], outside: str) -> list[Token]:
    """The Markdown parser's tokens of a line; a link whose target begins with ``outside`` is replaced by its text."""
    kept, leaves = [], False
    for part in parts:
        if part.type == "link_open":
            leaves = str(part.attrGet("href")).startswith(outside)
        if not (leaves and part.type in ("link_open", "link_close")):
            kept.append(part)
    return kept


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as on the documentation site: ``How to deploy`` becomes ``how-to-deploy``."""
    words = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", words)
