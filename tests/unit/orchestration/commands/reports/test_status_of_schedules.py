"""The next, last and missed slots of a schedule in `holdfast status`, in metrics, and in the asset of the store."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from holdfast.assets.state import _timers
from holdfast.orchestration.commands.json_documents import PartLag
from holdfast.orchestration.commands.reports.processor_rows import subtopologies_of
from holdfast.orchestration.commands.reports.status_parts import schedules_in_words
from holdfast.processors.engine.serving.metrics import WorkerMetrics
from holdfast.processors.engine.serving.status import ProcessorStatus, ScheduleStatus
from tests.unit.processors.engine.serving.test_metrics import status


def worker() -> dict[str, Any]:
    """A worker with two tasks of one schedule that has fired, and one schedule that has not fired yet."""
    document = status()
    report = {"next": 1_700_000_060.0, "last": 1_700_000_000.0, "fired": 3, "missed": 2}
    nightly = {"next": 1_700_003_600.0, "last": None, "fired": 0, "missed": 0}
    stores = [{"report": report, "nightly": nightly}, {"report": {**report, "last": 1_700_000_010.0}}]
    for task, schedules in zip(document["tasks"], stores, strict=True):
        task["timers"] = {"flights-schedules": {"pending": 0, "more": False, "schedules": schedules}}
    return document


def test_a_row_of_status_has_the_schedules_and_a_line_for_each() -> None:
    decoded = ProcessorStatus.decode(worker())
    assert decoded.timers is None
    [part] = subtopologies_of(decoded)
    assert PartLag.model_validate(part).schedules["report"].missed == 4
    assert schedules_in_words([{"processor": "fleet", "slot": "0", "subtopologies": [part]}]) == [
        "fleet, slot 0, schedule nightly: next 2023-11-14 23:13:20Z, no slot fired yet",
        "fleet, slot 0, schedule report: next 2023-11-14 22:14:20Z, last fired 2023-11-14 22:13:30Z, 4 slots missed",
    ]


def test_metrics_have_the_schedules_of_each_task_and_no_timers() -> None:
    page = WorkerMetrics().page(worker(), 0.1).decode()
    found = {
        f"{sample.name} {sample.labels['task']} {sample.labels['schedule']}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "schedule" in sample.labels
    }
    assert found["holdfast_schedule_next_seconds flights-0 report"] == 1_700_000_060.0
    assert found["holdfast_schedule_last_seconds flights-1 report"] == 1_700_000_010.0
    assert "holdfast_schedule_last_seconds flights-0 nightly" not in found
    assert found["holdfast_schedule_fired_total flights-0 report"] == 3
    assert found["holdfast_schedule_missed_total flights-1 report"] == 2
    assert "holdfast_pending_timers{" not in page


def test_the_asset_of_the_store_has_a_row_for_each_schedule() -> None:
    rows = _timers([ProcessorStatus.decode(worker())], "flights-schedules")["schedules"].records
    assert [dict(row.data) for row in rows] == [
        {"schedule": "nightly", "next": "2023-11-14 23:13:20Z", "last": "none", "fired": 0, "missed": 0},
        {"schedule": "report", "next": "2023-11-14 22:14:20Z", "last": "2023-11-14 22:13:30Z", "fired": 6, "missed": 4},
    ]


def test_a_status_of_a_former_worker_has_no_schedules() -> None:
    decoded = ProcessorStatus.decode(status())
    assert decoded.tasks[0].timers["aircraft"].schedules == {}
    assert ScheduleStatus(None).fired == 0
