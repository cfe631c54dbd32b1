"""The docs site builds without a warning, its links lead to pages, and it loads nothing from the network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.built_site import build, lost, pages_of

FOREIGN = re.compile(r"^(?:https?:)?//")
#: The addresses that a style sheet loads.
STYLED = re.compile(r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_links_of_the_site_lead_to_files_and_anchors(site: Path) -> None:
    pages = pages_of(site)
    assert len(pages) > 80
    assert lost(pages) == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loaded = [address for page in pages_of(site).values() for address in page.loaded]
    styled = [
        "".join(found) for sheet in site.rglob("*.css") for found in STYLED.findall(sheet.read_text(encoding="utf-8"))
    ]
    assert len(loaded) > 500
    assert [address for address in [*loaded, *styled] if FOREIGN.match(address)] == []


@pytest.mark.slow
def test_every_page_of_the_repository_is_in_the_index_of_the_search(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    for place in ("runbook.html", "reference/errors.html", "project/architecture.html", "decisions/leases.html"):
        assert f'"location":"{place}"' in index


@pytest.mark.slow
def test_a_link_to_nowhere_and_an_unknown_anchor_stop_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md), [three](index.md#three)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: x\nvalidation: {links: {not_found: warn, anchors: warn}}\n")
    done = build(tmp_path / "site", config)
    assert done.returncode != 0
    assert "two.md" in done.stderr
    assert "#three" in done.stderr


def test_lost_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="x"></h1><a href="b.html#y"></a><a href="#x"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<img src="d.png"><a href="a.html#x"></a><a href="https://example.com/#q"></a>')
    assert lost(pages_of(tmp_path)) == ["a.html: b.html#y", "a.html: c.html", "b.html: d.png"]
