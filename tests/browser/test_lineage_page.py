"""The lineage graph and an asset's page of Dagster's UI in a real browser without a network."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.host import local


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    yield local.start_webserver(settings)
    local.stop(settings, local.WEBSERVER)


def test_the_lineage_shows_the_whole_path(page: Page, url: str) -> None:
    outside: list[str] = []

    def note(request: Request) -> None:
        if request.url.startswith("http") and not request.url.startswith(url):
            outside.append(request.url)

    page.on("request", note)
    page.goto(f"{url}/locations/holdfast/asset-groups/fleet/lineage")
    for name in ("aircraft_changelog", "fleet_processor", "aircraft_state", "aircraft_snapshot"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=60_000)
    assert outside == []
    expect(page.get_by_text("Loading...")).to_have_count(0, timeout=30_000)
    page.get_by_text("fleet_processor", exact=True).first.click()
    expect(page.get_by_text("Per aircraft: flights").first).to_be_visible(timeout=30_000)


def test_an_asset_page_tells_its_checks(page: Page, url: str) -> None:
    page.goto(f"{url}/assets/changelogs/routes/routes_changelog?view=checks")
    expect(page.get_by_text("config_matches_spec").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("partitions_match_source").first).to_be_visible()


@pytest.mark.thorough
def test_an_assets_page_leads_to_its_page_of_the_docs(page: Page, url: str) -> None:
    page.goto(f"{url}/assets/processors/fleet/fleet_processor")
    with page.expect_popup(timeout=60_000) as opened:
        page.locator('a[href$="/docs/runbook.md"]').first.click()
    expect(opened.value.get_by_role("heading", level=1)).to_have_text("Runbook: a check is red", timeout=30_000)
