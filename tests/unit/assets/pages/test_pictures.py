"""The SVG pictures on asset pages are well-formed, and show the partitions and numbers of their asset."""

import base64
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

from holdfast.assets.pages.drawing import RED, ROWS_MAX
from holdfast.assets.pages.pictures import (
    CHECKS_MAX,
    SNAPSHOTS_MAX,
    CompactionSeen,
    changelog_picture,
    processor_picture,
    skew,
    snapshot_picture,
    snapshot_svg,
    state_picture,
)
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus
from tests.unit.processors.snapshots.test_plan import base_at, log


def test_a_picture_has_each_partition_and_the_last_snapshots():
    snapshots = [base_at(150, 0, snapshot_id=f"s{number}", taken_at=1e9 + number) for number in range(40)]
    svg = snapshot_svg(snapshots[0], log(180, 260), snapshots)
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert texts.count("partition 0") == texts.count("partition 1") == 2
    assert "0 · 0 · 150 · 180" in texts
    assert sum("deletions, changelog" in (text or "") for text in texts) == SNAPSHOTS_MAX


def test_names_can_not_break_it_and_nothing_is_needed_of_the_changelog():
    strange = replace(base_at(), source="<&>")
    svg = snapshot_svg(strange, None, [strange])
    assert "&lt;&amp;&gt;" in svg
    ElementTree.fromstring(svg)
    text = snapshot_picture(base_at(7, base="older"), None, [])
    drawn = re.search(r"data:image/svg\+xml;base64,([^)]+)\)", text)
    assert drawn is not None
    assert base64.b64decode(drawn[1]).startswith(b"<svg")
    assert "base older" in text


def drawn(picture: str) -> list[str]:
    """Parse the SVG of a picture and return its texts."""
    found = re.search(r"data:image/svg\+xml;base64,([^)]+)\)", picture)
    assert found is not None
    root = ElementTree.fromstring(base64.b64decode(found[1]))
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


def worker(*tasks: TaskStatus) -> ProcessorStatus:
    facts = ("fleet", "0", 7, "running", "exactly-once", "v1", 100.0, 210.0, None)
    return ProcessorStatus(*facts, records={}, commits={}, tasks=tasks)


def task(partition: int, lag: int | None, restored_s: float) -> TaskStatus:
    inputs = {"<in>": InputPosition(0, 0, lag, lag)}
    return TaskStatus(f"0_{partition}", "0", partition, "running", inputs, restored=9, restored_s=restored_s)


def test_a_processor_shows_lag_and_restore_of_each_task():
    picture = processor_picture([worker(task(1, None, 0.5)), worker(task(0, 1200, 12.25))])
    assert picture.startswith("**2 tasks**: 1,200 records behind; the slowest restore took 12.2 s")
    words = drawn(picture)
    assert words.count("0_0") == words.count("0_1") == 2
    assert {"1,200 records", "not known yet", "12.2 s, 9 records"} <= set(words)
    assert processor_picture([]) == ""


def test_a_state_shows_how_uneven_its_keys_are():
    assert skew({0: 10, 1: 10}) == 1.0
    assert skew({0: 0, 1: 0}) == skew({}) == 1.0
    assert skew({0: 90, 1: 0, 2: 0}) == 3.0
    picture = state_picture("counts", {0: 90, 1: 0, 2: 0})
    assert "3 times the mean" in picture
    assert {"partition 0", "partition 2", "90"} <= set(drawn(picture))
    assert state_picture("counts", {}) == ""


def test_of_very_many_partitions_the_fullest_are_drawn():
    words = drawn(state_picture("counts", {number: number for number in range(1000)}))
    assert sum(word.startswith("partition") for word in words) == ROWS_MAX
    assert "partition 999" in words
    assert f"and {1000 - ROWS_MAX} that are shorter" in words


def test_a_changelog_shows_what_compaction_left_check_by_check():
    now = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
    history = [
        CompactionSeen(now - timedelta(days=day), 1000 * (day + 1), 100 if day else None, passed=day != 1)
        for day in range(60)
    ]
    picture = changelog_picture(history)
    assert picture.startswith("**1,000 offsets** between")
    words = drawn(picture)
    assert sum("offsets" in word for word in words) == CHECKS_MAX
    assert "2,000 offsets, 100 keys: 20.0 for each" in words
    found = re.search(r"base64,([^)]+)", picture)
    assert found is not None
    assert base64.b64decode(found[1]).decode().count(RED) == 1
    assert changelog_picture([]) == ""
