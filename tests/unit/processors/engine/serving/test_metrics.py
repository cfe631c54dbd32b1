"""Status documents as Prometheus metrics, and the documentation page that explains the metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from holdfast.processors.engine.serving.metrics import WorkerMetrics
from holdfast.processors.engine.serving.status import ProcessorStatus

PROJECT = Path(__file__).resolve().parents[5]


def status(**facts: Any) -> dict[str, Any]:
    """The status of a worker with one running task and one task that restores."""
    running = {
        "task": "flights-0",
        "subtopology": "flights",
        "partition": 0,
        "phase": "running",
        "inputs": {"flights": {"committed": 5, "position": 7, "end": 9, "lag": 2}},
        "stores": {"aircraft": {"changelog": "fleet-aircraft-changelog", "offset": 11}},
        "restore": None,
        "store_bytes": 4096,
        "state": {"aircraft": {"reads": 70, "misses": 7}},
        "stream_time": 1_700_000_050.5,
        "late": {"aircraft": 4},
        "timers": {"aircraft": {"pending": 12, "more": False, "next_stream": 1_700_000_060.5, "next_processing": None}},
    }
    restore = {"records": 40, "remaining": 60, "records_per_s": 20.0, "seconds": 2.0}
    restoring = {**running, "task": "flights-1", "partition": 1, "phase": "restoring", "restore": restore, "state": {}}
    restoring |= {"stream_time": None, "late": {}, "timers": {}}
    return {
        "processor": "fleet",
        "slot": "0",
        "pid": 7,
        "phase": "restoring",
        "paused": False,
        "guarantee": "exactly-once",
        "code_version": "v1",
        "started_at": 1_700_000_000.0,
        "heartbeat_at": 1_700_000_100.0,
        "error": None,
        "lag": None,
        "records": {"processed": 70, "outputs": 65, "dead_lettered": 3, "skipped": 2},
        "commits": {
            "count": 6,
            "aborted": 1,
            "last_at": 1_700_000_099.0,
            "last_ms": 12.5,
            "latency": {"bounds_s": [0.01, 0.1, 1], "counts": [1, 2, 0, 3], "sum_s": 12.25},
        },
        "checkpoints": {
            "store": "s3://bucket",
            "ok": False,
            "error": "it is away",
            "retry_in_s": 5.0,
            "uploads": 4,
            "failures": 2,
            "uploaded_bytes": 8192,
            "uploading": None,
            "tasks": {"flights-0": {"checkpoint": "1-a", "at": 1_700_000_050.0, "bytes": 4096, "bytes_new": 96}},
        },
        "tasks": [running, restoring],
        "global_tables": {"planes": {"rows": 8, "bytes": 900, "loading": False, "remaining": 0}},
        "lookups": {"plane_of": {"hits": 40, "misses": 4, "entries": 3}},
        **facts,
    }


def read(page: bytes) -> dict[str, float]:
    return {
        sample.name
        + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("processor", "slot")): (
            sample.value
        )
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_every_figure_is_where_it_belongs() -> None:
    found = read(WorkerMetrics().page(status(), 1.5))
    assert {name: value for name, value in found.items() if not name.startswith("holdfast_phase")} == {
        "holdfast_worker_info code_version=v1 guarantee=exactly-once": 1,
        "holdfast_paused": 0,
        "holdfast_start_time_seconds": 1_700_000_000,
        "holdfast_heartbeat_age_seconds": 1.5,
        "holdfast_records_processed_total": 70,
        "holdfast_outputs_sent_total": 65,
        "holdfast_dead_letters_total": 3,
        "holdfast_records_skipped_total": 2,
        "holdfast_lookup_hits_total lookup=plane_of": 40,
        "holdfast_lookup_misses_total lookup=plane_of": 4,
        "holdfast_lookup_cached_records lookup=plane_of": 3,
        "holdfast_global_table_records topic=planes": 8,
        "holdfast_global_table_size_bytes topic=planes": 900,
        "holdfast_commits_total": 6,
        "holdfast_aborts_total": 1,
        "holdfast_last_commit_time_seconds": 1_700_000_099,
        "holdfast_commit_duration_seconds_bucket le=0.01": 1,
        "holdfast_commit_duration_seconds_bucket le=0.1": 3,
        "holdfast_commit_duration_seconds_bucket le=1.0": 3,
        "holdfast_commit_duration_seconds_bucket le=+Inf": 6,
        "holdfast_commit_duration_seconds_count": 6,
        "holdfast_commit_duration_seconds_sum": 12.25,
        "holdfast_lag_records partition=0 topic=flights": 2,
        "holdfast_stream_time_seconds task=flights-0": 1_700_000_050.5,
        "holdfast_late_windows_total store=aircraft task=flights-0": 4,
        "holdfast_pending_timers store=aircraft task=flights-0": 12,
        "holdfast_next_timer_seconds clock=stream store=aircraft task=flights-0": 1_700_000_060.5,
        "holdfast_store_size_bytes task=flights-0": 4096,
        "holdfast_store_size_bytes task=flights-1": 4096,
        "holdfast_restore_records task=flights-1": 40,
        "holdfast_restore_remaining_offsets task=flights-1": 60,
        "holdfast_restore_records_per_second task=flights-1": 20,
        "holdfast_state_reads_total store=aircraft task=flights-0": 70,
        "holdfast_state_misses_total store=aircraft task=flights-0": 7,
        "holdfast_checkpoint_store_ok": 0,
        "holdfast_checkpoints_stored_total": 4,
        "holdfast_checkpoint_failures_total": 2,
        "holdfast_checkpoint_stored_bytes_total": 8192,
        "holdfast_checkpoint_time_seconds task=flights-0": 1_700_000_050,
    }
    assert found["holdfast_phase phase=restoring"] == 1
    assert sum(value for name, value in found.items() if name.startswith("holdfast_phase")) == 1


def test_what_is_processed_again_is_counted_once() -> None:
    metrics = WorkerMetrics()
    counted = [
        read(metrics.page(status(records={**status()["records"], "processed": processed}), 0))[
            "holdfast_records_processed_total"
        ]
        for processed in (70, 50, 60, 75)
    ]
    assert counted == [70, 70, 70, 75]


def test_a_worker_that_never_committed_says_no_moment() -> None:
    commits = {**status()["commits"], "last_at": None, "last_ms": None}
    assert not [name for name in read(WorkerMetrics().page(status(commits=commits), 0)) if "last_commit" in name]


def test_names_say_their_unit_and_what_they_count() -> None:
    units = (
        "_total",
        "_seconds",
        "_bytes",
        "_records",
        "_offsets",
        "_info",
        "_per_second",
        "_phase",
        "_paused",
        "_ok",
        "_timers",
        "_parts",
        "_remaining",  # by unit, which is a label
    )
    for family in text_string_to_metric_families(WorkerMetrics().page(status(), 0).decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name.startswith("holdfast_")
        assert name.endswith(units)
        assert family.documentation.endswith(".")


def test_the_page_explains_exactly_the_metrics_that_there_are() -> None:
    text = (PROJECT / "docs/metrics.md").read_text()
    explained = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \|", text, re.M)
    there = [
        (family.name + ("_total" if family.type == "counter" else ""), family.type)
        for family in text_string_to_metric_families(WorkerMetrics().page(status(), 0).decode())
    ]
    assert sorted(explained) == sorted(there)


def test_a_status_is_read_back_and_what_is_new_in_it_left_out() -> None:
    read_back = ProcessorStatus.decode({**status(), "of_the_future": 1})
    assert (read_back.paused, read_back.phase, read_back.lag) == (False, "restoring", None)
    assert read_back.tasks[0].state["aircraft"]["misses"] == 7
    assert ProcessorStatus.decode({**status(), "phase": "running"}).lag == 4


def test_a_status_of_an_older_worker_is_read() -> None:
    older = {name: value for name, value in status().items() if name not in ("paused", "lag")}
    for task in older["tasks"]:
        del task["store_bytes"], task["state"]
    read_back = ProcessorStatus.decode(older)
    assert (read_back.paused, read_back.tasks[0].store_bytes) == (False, None)
