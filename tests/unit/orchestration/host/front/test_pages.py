"""The documentation pages on the webserver: every link leads to a page, and no other files are served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from urllib.parse import urldefrag, urljoin

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast.infra.settings import WebserverSettings
from holdfast.orchestration.host.front.layer import Front
from holdfast.orchestration.host.front.pages import FOLDER, WithPages, anchor_of
from holdfast.orchestration.host.front.rules import rules_of

HOST = "http://127.0.0.1"
PAGES = sorted(each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*.md") if ".site" not in each.parts)


async def dagsters(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"Dagster's {request.method} {request.url.path}")


def answered(path: str, *, prefix: str = "", method: str = "GET", **settings: object) -> httpx.Response:
    """The response to a request from a browser on this machine."""
    app = Starlette(routes=[Route("/{path:path}", dagsters, methods=["GET", "POST"])])
    front = Front(WithPages(app, prefix), rules_of(WebserverSettings(**settings), prefix=prefix))  # type: ignore[arg-type]

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(front, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
            return await client.request(method, path)

    return asyncio.run(ask())


def links_of(page: str) -> Iterator[tuple[str, str]]:
    """The links and pictures of a page that point to this server, as path and anchor."""
    text = answered(f"/docs/{page}").text.partition("<main>")[2]
    for link in re.findall(r'(?:href|src)="([^"]+)"', text):
        if not link.startswith(("http:", "https:", "mailto:")):
            path, anchor = urldefrag(urljoin(f"/docs/{page}", link))
            yield path, anchor


@pytest.mark.parametrize("page", PAGES)
def test_each_link_of_a_page_leads_to_a_page_with_its_heading(page: str) -> None:
    for path, anchor in set(links_of(page)):
        found = answered(path)
        assert path.startswith("/docs/"), path
        assert found.status_code == 200, path
        assert not anchor or f'id="{anchor}"' in found.text, f"{path}#{anchor}"


def test_a_page_is_html_with_its_tables_and_runs_no_script() -> None:
    page = answered("/docs/runbook.md")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>" in page.text
    assert "<table>" in page.text
    assert "| --- |" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_the_first_page_lists_the_others() -> None:
    assert answered("/docs").headers["location"] == "/docs/index.md"
    assert answered("/docs/").headers["location"] == "/docs/index.md"
    paths = {path for path, _ in links_of("index.md")}
    assert "/docs/tutorial.md" in paths


@pytest.mark.parametrize(
    "path",
    ["/docs/nothing.md", "/docs/../pyproject.toml", "/docs/%2e%2e/README.md", "/docs//etc/hostname", "/docs/verify.py"],
)
def test_nothing_but_pages_and_pictures_is_served(path: str) -> None:
    answer = answered(path)
    assert answer.status_code == 404 or answer.text.startswith("Dagster's GET")
    assert "root:" not in answer.text


def test_a_name_that_is_no_page_is_shown_as_text() -> None:
    assert "<script>" not in answered("/docs/<script>").text


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/docstrings", "GET"), ("/assets/docs", "GET")])
def test_other_paths_are_dagsters(path: str, method: str) -> None:
    assert answered(path, method=method).text == f"Dagster's {method} {path}"


def test_below_a_path_prefix_the_docs_are_there_too() -> None:
    page = answered("/tools/docs/index.md", prefix="/tools")
    assert page.status_code == 200
    assert 'href="/tools/docs/index.md"' in page.text
    assert answered("/tools/docs", prefix="/tools").headers["location"] == "/tools/docs/index.md"


def test_who_may_not_see_dagster_sees_no_docs() -> None:
    assert answered("/docs/runbook.md", tokens={"anna": "0123456789abcdef-of-anna"}).status_code == 401


def test_headings_are_linked_to_as_on_the_site() -> None:
    assert anchor_of("A deploy proves the new version") == "a-deploy-proves-the-new-version"
    assert anchor_of("`kill -9`: what then?") == "kill-9-what-then"


def test_each_page_has_a_menu_of_all_pages_and_the_field_of_the_search() -> None:
    text = answered("/here/docs/tasks/clear-one-key.md", prefix="/here").text.partition("<main>")[0]
    assert set(re.findall(r'<li><a href="/here/docs/([^"]+)"', text)) == set(PAGES)
    assert '<form action="/here/docs/search"' in text


@pytest.mark.parametrize(
    ("query", "page"), [("exported file", "verbs.md"), ("DEAD letters", "failures.md"), ("tumbling", "windows.md")]
)
def test_a_search_leads_to_a_section_that_has_all_words(query: str, page: str) -> None:
    found = answered(f"/docs/search?q={query.replace(' ', '+')}")
    links = re.findall(r'href="(/docs/[^"#]+)#([^"]*)"', found.text.partition("<main>")[2])
    assert f"/docs/{page}" in {path for path, _ in links}
    for path, anchor in links[:3]:
        assert f'id="{anchor}"' in answered(path).text


def test_a_search_shows_words_as_text_and_says_when_nothing_is_found() -> None:
    text = answered("/docs/search?q=%3Cscript%3Ezzqq").text
    assert "<script" not in text
    assert "No section has all of these words" in text
    assert answered("/docs/search").headers["location"] == "/docs/index.md"
