"""The inputs in a worker's status: an input that is read to its end has no lag.

If the order of event times makes inputs wait for another input, the status names that input.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster, State
from holdfast.processors.engine.runtime.ownership.past_markers import PastMarkers
from holdfast.processors.engine.serving.parts import parts_of
from holdfast.processors.engine.serving.status import ProcessorStatus, describe_worker

TURNS = 2_000


def seen_of(
    cluster: InMemoryCluster, app: Application, until: Callable[[ProcessorStatus], bool] = lambda status: False
) -> ProcessorStatus:
    """The status of a worker after ``TURNS`` turns of its loop, or earlier, as soon as ``until(status)`` is true."""
    told: list[ProcessorStatus] = []

    def look(worker: Any, ticket: Any) -> Any:
        worker.maintenance.waits = True  # the worker must wait, so that the simulated time passes
        for _ in range(TURNS):
            status = ProcessorStatus.decode(describe_worker(worker, "g", "0", None))
            if until(status):
                break
            yield
        told.append(status)
        worker.stop()
        return {}

    app._errand = look
    cluster.run(app)
    return told[0]


def test_an_idle_repartition_topic_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end offset is after the position, because of a transaction marker. A marker is no record, so the lag is 0."""
    monkeypatch.setattr(PastMarkers, "move", lambda *_, **__: None)
    monkeypatch.setattr(PastMarkers, "rest", lambda *_: None)

    def build() -> Application:
        app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
        by_carrier = app.dataframe(app.topic("flights")).group_by("carrier")
        by_carrier.aggregate(n=Count()).to_topic(app.topic("out"))
        return app

    cluster = InMemoryCluster()
    cluster.create_topic("flights")
    cluster.produce("flights", json.dumps({"carrier": "LH"}).encode(), b"D-1")
    cluster.run(build())
    status = seen_of(cluster, build(), lambda status: bool(status.tasks) and status.lag == 0)
    assert {part.subtopology: part.lag for part in parts_of([status])} == {"flights": 0, "g-carrier-repartition": 0}
    [between] = [task.inputs["g-carrier-repartition"] for task in status.tasks if "carrier" in task.subtopology]
    assert between.end is not None
    assert between.position is not None
    assert between.end > between.position


def test_an_input_that_messages_of_others_wait_for_is_told() -> None:
    def last(value: Any, state: State) -> Any:
        state.set("last", value)
        return value

    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    for name in ("prices", "orders"):
        app.dataframe(app.topic(name)).apply(last, stateful=True, store="last").to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for name in ("prices", "orders"):
        cluster.create_topic(name)
    cluster.produce("orders", b"1", b"k")
    cluster.open_foreign_transaction("prices", 0, [(b"k", b"10")])
    status = seen_of(cluster, app, lambda status: any(task.awaited for task in status.tasks))
    [part] = parts_of([status])
    assert part.awaited == ("prices",)
    assert part.lags["orders"] == 1
