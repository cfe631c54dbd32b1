"""A recovery by the sensor in Dagster's UI: the asset is red with the reason, then green with the incident's story."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from holdfast.assets import keys
from holdfast.orchestration.host import local
from tests.browser.conftest import picture
from tests.drills.dagster_answers import DagsterAnswers, Evaluation
from tests.drills.patience import wait_for
from tests.parts.operated import Operated

WORKING = "working"


@pytest.fixture
def url(operated: Operated) -> Iterator[str]:
    local.start_daemon(operated.settings)
    yield local.start_webserver(operated.settings)
    local.stop(operated.settings, local.WEBSERVER)
    local.stop(operated.settings, local.DAEMON)


@pytest.mark.thorough
def test_a_killed_processor_is_red_then_green_with_its_story(page: Page, operated: Operated, url: str) -> None:
    operated.bring_up()
    operated.feed(keys=5, each=2)
    operated.processed(10)
    dagster, key = DagsterAnswers(url), keys.processor_key(operated.group)
    page.set_default_timeout(90_000)
    checks = f"{url}/assets/{'/'.join(key.path)}?view=checks&checkDetail={WORKING}"

    def newest() -> Evaluation | None:
        return next(iter(dagster.evaluations(key, WORKING)), None)

    wait_for(lambda: (seen := newest()) and seen.passed, "the check to be green")
    status = operated.client.status()
    assert status is not None
    killed_at = time.time()
    os.kill(status.pid, signal.SIGKILL)
    wait_for(lambda: (seen := newest()) and not seen.passed and seen.at > killed_at, "the check to be red")
    page.goto(checks)
    expect(page.get_by_text("SIGKILL").first).to_be_visible(timeout=90_000)
    picture(page, "recovery-red.png")

    wait_for(lambda: (seen := newest()) and seen.passed and seen.at > killed_at, "the check to be green again")
    page.goto(checks)
    expect(page.get_by_text("Passed").first).to_be_visible(timeout=90_000)
    (run,) = dagster.run_ids("recover_processor")
    page.goto(f"{url}/runs/{run}")
    page.get_by_text("[Show Markdown]").first.click()
    story = page.get_by_role("dialog")
    for step in ("noticed", "diagnose", "fence", "restart", "verify", "resolved"):
        expect(story.get_by_text(step).first).to_be_visible(timeout=90_000)
    picture(page, "recovery-green.png")
