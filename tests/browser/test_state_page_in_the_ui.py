"""From the page of a store's asset in Dagster's UI to one key of the running processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from holdfast.assets import keys
from holdfast.orchestration.host import local
from tests.browser.conftest import picture
from tests.parts.operated import Operated


@pytest.fixture
def url(operated: Operated) -> Iterator[str]:
    yield local.start_webserver(operated.settings)
    local.stop(operated.settings, local.WEBSERVER)


@pytest.mark.thorough
def test_a_key_is_read_from_the_page_of_its_store(page: Page, operated: Operated, url: str) -> None:
    operated.bring_up()
    operated.feed(keys=5, each=2)
    operated.processed(10)
    page.set_default_timeout(90_000)
    page.goto(f"{url}/assets/{'/'.join(keys.state_key(operated.group, 'counts').path)}")
    with page.expect_popup() as opened:
        page.locator(f'a[href*="/state?processor={operated.group}"]').first.click()
    form = opened.value
    assert (form.get_by_label("Processor").input_value(), form.get_by_label("Store or table").input_value()) == (
        operated.group,
        "counts",
    )
    form.get_by_label("Key", exact=True).fill("key-1")
    form.get_by_role("button", name="Read").click()
    expect(form.get_by_role("row", name="n 2")).to_be_visible()
    expect(form.get_by_text("read from the owner (worker 0)")).to_be_visible()
    picture(form, "state-page.png", height=420)
    form.get_by_label("Key", exact=True).fill("nobody")
    form.get_by_role("button", name="Read").click()
    expect(form.get_by_text("The store does not have this key.")).to_be_visible()
