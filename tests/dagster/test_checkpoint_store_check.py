"""The check of the checkpoint store warns while a worker can't store checkpoints; it blocks no other asset."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from holdfast.assets.state import CHECKPOINTS_STORED, judge_store
from holdfast.processors.engine.serving.status import ProcessorStatus

KEY = dg.AssetKey(["fleet", "aircraft"])


def status(slot: str, **facts: Any) -> ProcessorStatus:
    told = {"store": "s3://bucket", "ok": True, "error": None, "retry_in_s": None, "uploads": 3, "failures": 0}
    return ProcessorStatus(
        processor="fleet",
        slot=slot,
        pid=1,
        phase="running",
        guarantee="exactly-once",
        code_version="v",
        started_at=0.0,
        heartbeat_at=0.0,
        error=None,
        records={},
        commits={},
        tasks=(),
        checkpoints=None if "off" in facts else {**told, **facts},
    )


def test_a_store_that_fails_is_warned_of_with_its_reason() -> None:
    failing = status("1", ok=False, error="it is full", retry_in_s=10.0, failures=4)
    judged = judge_store(KEY, [status("0"), failing])
    assert (judged.check_name, judged.passed, judged.severity) == (
        CHECKPOINTS_STORED,
        False,
        dg.AssetCheckSeverity.WARN,
    )
    assert judged.description is not None
    assert judged.description.startswith("Slot 1: it is full (4 failures, next attempt in 10 s).")
    assert "Slot 0" not in judged.description
    assert judged.metadata["failures"].value == 4


def test_a_store_that_is_slow_is_warned_of_too() -> None:
    judged = judge_store(KEY, [status("0", ok=False, error="it is slow")])
    assert not judged.passed
    assert judged.description is not None
    assert judged.description.startswith("Slot 0: it is slow (0 failures). Expected: workers store their checkpoints.")


@pytest.mark.parametrize("statuses", [[], [status("0", off=True)], [status("0"), status("1")]])
def test_a_store_that_works_or_is_not_used_is_well(statuses: list[ProcessorStatus]) -> None:
    assert judge_store(KEY, statuses).passed
