"""Fixtures of a real browser for Dagster's UI, and the fixtures of the tests of verbs (operator commands)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from holdfast.infra.setup.browser import find_browser
from tests.parts.operated import operated
from tests.spark.tuning import tier_configuration, tuned_jvms

__all__ = ["operated", "tier_configuration", "tuned_jvms"]

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
#: Read at import, because each test runs without the HOLDFAST_ environment variables of the machine.
TAKE_SCREENSHOTS = os.environ.get("HOLDFAST_SCREENSHOTS") == "1"


@pytest.fixture
def page() -> Iterator[Page]:
    executable = find_browser()
    if executable is None:
        pytest.skip("there is no Chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(executable), args=FLAGS)
        yield browser.new_page(viewport={"width": 1800, "height": 900})
        browser.close()


def picture(page: Page, name: str, *, height: int | None = None) -> None:
    """Save a screenshot for the docs, from the top of the page to ``height``.

    Does nothing unless HOLDFAST_SCREENSHOTS is set.
    """
    if not TAKE_SCREENSHOTS:
        return
    expect(page.get_by_text("Loading", exact=False)).to_have_count(0, timeout=30_000)
    seen = page.viewport_size
    assert seen is not None
    clip = {"x": 0, "y": 0, "width": seen["width"], "height": height or seen["height"]}
    IMAGES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=IMAGES / name, clip=clip, animations="disabled")
