"""Verbs (operator commands) in Dagster's UI in a real browser.

A clear is first a dry run, whose hash then confirms it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from playwright.sync_api import Page, expect

from holdfast.orchestration.host import local
from tests.browser.conftest import picture
from tests.parts.operated import Operated

#: Maximum time for a run to be dequeued, started and finished, in milliseconds.
RUN_MS = 180_000


@pytest.fixture
def url(operated: Operated) -> Iterator[str]:
    local.start_daemon(operated.settings)
    yield local.start_webserver(operated.settings)
    local.stop(operated.settings, local.WEBSERVER)
    local.stop(operated.settings, local.DAEMON)


def launch(page: Page, url: str, job: str, op: str, **config: object) -> None:
    """Enter a run's config in the launchpad, launch the run, and wait on its page until it has finished."""
    page.goto(f"{url}/locations/holdfast/jobs/{job}/playground")
    editor = page.locator(".CodeMirror").first
    expect(editor).to_be_visible(timeout=60_000)
    text = yaml.safe_dump({"ops": {op: {"config": config}}})
    editor.evaluate("(node, text) => node.CodeMirror.setValue(text)", text)
    page.get_by_role("button", name="Launch run").click(timeout=60_000)
    page.wait_for_url("**/runs/**", timeout=60_000)
    expect(page.get_by_text("RUN_SUCCESS").first).to_be_visible(timeout=RUN_MS)


@pytest.mark.thorough
def test_a_clear_is_a_dry_run_first_and_done_once_confirmed(page: Page, operated: Operated, url: str) -> None:
    operated.bring_up()
    operated.feed(keys=5, each=2)
    operated.processed(10)
    wanted = {"processor": operated.group, "stores": ["counts"], "keys": ["key-1"]}
    page.set_default_timeout(60_000)

    launch(page, url, "clear_state", "clear_one", **wanted)
    page.get_by_text("[Show Markdown]").first.click()
    shown = page.get_by_role("dialog")
    expect(shown.get_by_text("This was a dry run")).to_be_visible()
    expect(shown.get_by_text("delete key 'key-1' of counts").first).to_be_visible()
    confirm = re.search(r"confirm: (\w{12})", shown.inner_text())
    assert confirm is not None
    picture(page, "clear-dry-run.png")
    assert operated.logged()["key-1"] == 2

    launch(page, url, "clear_state", "clear_one", **wanted, dry_run=False, confirm=confirm[1])
    picture(page, "clear-confirmed.png")
    assert operated.logged() == {f"key-{number}": 2 for number in (0, 2, 3, 4)}
