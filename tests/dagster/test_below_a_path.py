"""Dagster's UI below a path prefix, as behind a proxy: links of its assets lead to the docs below the same prefix."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast.infra.settings import Settings, WebserverSettings, load_settings
from holdfast.orchestration.foreground import answers
from holdfast.orchestration.host import local

LINKS = """{ assetNodes { assetKey { path } metadataEntries { label ... on UrlMetadataEntry { url } } } }"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    below = WebserverSettings(path_prefix="/tools/dagster")
    return load_settings(home=tmp_path_factory.mktemp("home"), webserver=below)


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    yield local.start_webserver(settings)
    local.stop(settings, local.WEBSERVER)


def test_links_of_assets_lead_to_the_docs_below_the_path(url: str) -> None:
    assert urlsplit(url).path == "/tools/dagster"
    nodes = httpx.post(f"{url}/graphql", json={"query": LINKS}, timeout=60).json()["data"]["assetNodes"]
    links = {
        entry["url"]
        for node in nodes
        if node["assetKey"]["path"][0] in ("topics", "changelogs", "processors", "state", "warehouse")
        for entry in node["metadataEntries"]
        if entry["label"] == "docs"
    }
    assert len(links) >= 5
    for link in links:
        page = httpx.get(f"http://{urlsplit(url).netloc}{link}", timeout=60)
        assert page.status_code == 200, link
        assert "<h1" in page.text
        assert 'href="/tools/dagster/docs/index.md"' in page.text


def test_the_ui_is_there_and_nothing_is_at_the_root(url: str) -> None:
    root = f"http://{urlsplit(url).netloc}"
    assert httpx.get(f"{url}/server_info", timeout=60).status_code == 200
    assert httpx.get(f"{root}/docs/runbook.md", timeout=60).status_code == 404


def test_the_health_check_of_a_container_finds_the_ui_below_its_path(url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    assert answers(port)
