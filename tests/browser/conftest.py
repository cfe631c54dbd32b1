"""A real browser for Dagster's UI, and the verbs' own fixture."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from infra.browser import find_browser
from tests.operating import operated

__all__ = ["operated"]

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
#: Read when this is imported: tests run without HOLDFAST_ settings from outside.
TAKE_SCREENSHOTS = os.environ.get("HOLDFAST_SCREENSHOTS") == "1"


@pytest.fixture
def page() -> Iterator[Page]:
    executable = find_browser()
    if executable is None:
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(executable), args=FLAGS)
        yield browser.new_page(viewport={"width": 1800, "height": 900})
        browser.close()
