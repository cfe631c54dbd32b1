"""The docs site, opened from files in a browser: its search finds a page without any network request."""

from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.docs.built_site import build


def test_the_search_works_in_files_and_without_a_network(page: Page, tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    page.route(lambda url: not url.startswith(("file:", "data:", "blob:", "about:")), refuse)
    page.goto((tmp_path / "index.html").as_uri())
    page.get_by_role("textbox", name="Search").fill("no_hanging_transaction")
    hit = page.locator('.md-search-result__link[href*="runbook.html"][href$="#no_hanging_transaction"]').first
    expect(hit).to_be_visible()
    hit.click()
    expect(page.get_by_role("heading", name="no_hanging_transaction")).to_be_visible()
    assert page.url.startswith((tmp_path / "runbook.html").as_uri())
    assert asked == []
