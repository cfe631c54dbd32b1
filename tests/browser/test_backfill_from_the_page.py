"""A user backfills past hours on a snapshot asset's page in a real browser.

The table then has a version for each hour.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import Locator, Page, expect

from holdfast.assets import keys
from holdfast.assets.times import snapshot_partitions
from holdfast.infra.settings import SnapshotSettings
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.infra.warehouse.catalog import load_table, read_table
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.host import local
from holdfast.processors.snapshots.names import time_tag
from tests.browser.conftest import picture
from tests.dagster.test_past_windows import HOUR_S, OF_THEN
from tests.drills.dagster_answers import DagsterAnswers
from tests.parts import operated as operating
from tests.parts.operated import Operated

#: Maximum time until a backfill is picked up, has started and has finished, in milliseconds.
BACKFILL_MS = 240_000
HOURS = snapshot_partitions(SnapshotSettings(every="hour", since=date(2026, 1, 1)))
#: A processor that counts visits; the sixth visit of a key deletes its state.
DEFINITION = """
from typing import TypedDict

from holdfast import Application

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 6000}},
)
Visits = TypedDict("Visits", {{"visits": int, "regular": bool}})

def visit(value, state):
    visits = state.get("known", {{"visits": 0}})["visits"] + 1
    if visits == 6:
        state.delete("known")
    else:
        state.set("known", {{"visits": visits, "regular": visits > 3}})
    return visits

application.dataframe(application.topic("{group}-in")).apply(visit, stateful=True, store="counts", model=Visits)
"""
#: Visits as (hours relative to the start of the current hour, number of keys); None is now. The first visits are
#: published at once.
CAME_BY = ((-3.8, 40), (-3.4, 60), (-2.5, 70), (-1.5, 80), (-0.5, 90), (None, 100))
PUBLISHED = 1


@pytest.fixture(autouse=True)
def then(tuned_jvms: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the worker's simulated time. Records and checkpoints get this time."""
    path = tmp_path / "then"
    path.write_text(str(time.time()))
    monkeypatch.setattr(operating, "DEFINITION", OF_THEN.replace("THEN_FILE", str(path)) + DEFINITION)
    monkeypatch.setenv("HOLDFAST_SNAPSHOTS__EVERY", "hour")
    monkeypatch.setenv("HOLDFAST_SNAPSHOTS__SINCE", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 24 * HOUR_S)))
    monkeypatch.setenv("HOLDFAST_SPARK__MASTER", "warm")
    return path


@pytest.fixture
def url(operated: Operated) -> Iterator[str]:
    """The webserver's URL. The fixture also starts the daemon and one Spark server for all runs."""
    with ThreadPoolExecutor(1) as meanwhile:
        spark = meanwhile.submit(start_server, operated.settings)
        local.start_daemon(operated.settings)
        webserver = local.start_webserver(operated.settings)
        spark.result()
    yield webserver
    local.stop(operated.settings, local.WEBSERVER)
    local.stop(operated.settings, local.DAEMON)
    stop_server(operated.settings)


@pytest.fixture
def hour(operated: Operated, url: str, then: Path) -> float:
    """The start of the current hour.

    The processor has processed visits of earlier hours; its first snapshot is published.
    """
    group = operated.group
    state, snapshot = keys.state_key(group, "counts"), keys.snapshot_key(group, "counts")
    job = build_definitions(operated.settings).resolve_implicit_global_asset_job_def()

    def materialize(*assets: dg.AssetKey) -> None:
        """Materialise the asset in a run of this process, on the same Dagster instance as the webserver.

        The page launches the backfill itself.
        """
        with dg.DagsterInstance.from_config(str(operated.settings.paths.dagster)) as instance:
            assert job.execute_in_process(instance=instance, asset_selection=list(assets)).success

    materialize(keys.changelog_key(group, "counts"), keys.processor_key(group))
    # Like a processor with hourly snapshots: no record of the last twelve hours is compacted.
    operated.topics.alter(operated.changelog, {"min.compaction.lag.ms": str(int(12 * HOUR_S * 1000))})
    began, fed = time.time() // HOUR_S * HOUR_S, 0
    for number, (at, count) in enumerate(CAME_BY):
        then.write_text(str(time.time() if at is None else began + at * HOUR_S))
        operated.feed(keys=count, each=1)
        fed += count
        operated.processed(fed)
        if number < PUBLISHED:
            materialize(state, snapshot)
    materialize(state)
    return began


def held(until: float | None) -> dict[str, int]:
    """The expected visits of each key before this hour, which is relative to the current hour. None means now."""
    came = Counter(
        f"key-{number}"
        for at, count in CAME_BY
        if until is None or (at is not None and at < until)
        for number in range(count)
    )
    return {key: visits for key, visits in came.items() if visits < 6}


def table(operated: Operated, tag: str | None = None) -> dict[str, int]:
    rows = read_table(operated.settings, operated.group, "counts", tag=tag)
    return dict(zip(rows["message_key"].to_pylist(), rows["visits"].to_pylist(), strict=True))


@pytest.mark.thorough
def test_hours_that_have_ended_are_backfilled_from_the_assets_page(
    operated: Operated, url: str, hour: float, page: Page
) -> None:
    asset = f"{url}/assets/{'/'.join(keys.snapshot_key(operated.group, 'counts').path)}"
    windows = [HOURS.get_partition_key_for_timestamp(hour - ago * HOUR_S) for ago in (3, 2, 1)]
    page.set_default_timeout(60_000)
    page.set_viewport_size({"width": 1440, "height": 900})

    backfill = launch_backfill(page, asset, windows[0], windows[-1])
    page.goto(f"{url}/runs/b/{backfill}")
    expect(page.get_by_text("100% completed")).to_be_visible(timeout=BACKFILL_MS)
    runs = "query($tags: [ExecutionTag!]) { runsOrError(filter: {tags: $tags}) { ... on Runs { results { status } } } }"
    found = DagsterAnswers(url).ask(runs, tags=[{"key": "dagster/backfill", "value": backfill}])
    assert [each["status"] for each in found["runsOrError"]["results"]] == ["SUCCESS"], "a range is one run"

    assert [table(operated, time_tag(window)) for window in windows] == [held(-2), held(-1), held(0)]
    assert table(operated) == held(None), "what is published is the store now"
    page.goto(f"{asset}?view=partitions")
    expect(page.get_by_text("Materialized (3)")).to_be_visible()
    page.get_by_text(windows[-1], exact=True).first.click()
    expect(page.get_by_text("time_partitions").first).to_be_visible()
    picture(page, "backfill-done.png", height=640)

    look_at_pages(operated, page, asset)


def launch_backfill(page: Page, asset: str, first: str, last: str) -> str:
    """Launch a backfill with the button on the asset's page, as a user does. Returns the backfill's id."""
    page.goto(asset)
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    chosen = dialog.get_by_role("textbox")
    chosen.fill(f"[{first}...{last}]")
    chosen.press("Enter")
    expect(dialog.get_by_text("3 partitions", exact=True)).to_be_visible()
    expect(dialog.get_by_text("Backfills all partitions in a single run.")).to_be_visible()
    picture(page, "backfill.png", height=720)
    dialog.get_by_role("button", name="Launch backfill").click()
    told = page.get_by_text(re.compile(r"Created backfill \w+")).first.text_content()
    backfill = re.search(r"Created backfill (\w{8})", told or "")
    assert backfill is not None, told
    return backfill[1]


def look_at_pages(operated: Operated, page: Page, asset: str) -> None:
    """Check what the pages of a table's asset show: columns, picture, checks, lineage."""
    page.set_viewport_size({"width": 1720, "height": 1040})
    page.goto(asset)
    for column in load_table(operated.settings, operated.group, "counts").schema().fields:
        expect(page.get_by_text(column.name, exact=True).first).to_be_visible()
    picture(page, "snapshot-page.png")
    page.set_viewport_size({"width": 1440, "height": 900})
    row(page, "picture").get_by_text("[Show Markdown]").click()
    drawn = page.get_by_role("dialog").get_by_role("img", name="the snapshot")
    expect(drawn).to_have_js_property("naturalWidth", 720)
    picture(page, "snapshot-picture.png", height=720)

    page.goto(f"{asset}?view=checks")
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(2)
    page.get_by_text("matches_state", exact=True).first.click()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    picture(page, "snapshot-checks.png", height=640)

    page.goto(f"{asset}?view=lineage&lineageScope=upstream&lineageDepth=5")
    for name in ("counts_changelog", "counts_state", "counts_snapshot"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    picture(page, "snapshot-lineage.png", height=720)


def row(page: Page, name: str) -> Locator:
    """The row with this name in the page's metadata table."""
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))
