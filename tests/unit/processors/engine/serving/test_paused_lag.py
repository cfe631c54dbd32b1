"""A paused worker fetches nothing, but still reports its lag."""

from __future__ import annotations

from typing import Any

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.serving import status
from holdfast.processors.engine.serving.status import ProcessorStatus, describe_worker


def test_what_comes_while_a_worker_is_paused_is_its_lag() -> None:
    cluster, seen = InMemoryCluster(), list[ProcessorStatus]()
    cluster.create_topic("in", partitions=2)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).apply(lambda value: value)
    for number in range(6):
        cluster.produce("in", b"1", f"{number}".encode())

    def look(worker: Any) -> None:
        cluster.advance(status.ENDS_EVERY_S)
        seen.append(ProcessorStatus.decode(describe_worker(worker, "g", "0", None)))

    def errand(worker: Owner, ticket: Ticket) -> Work:
        worker.maintenance.waits = True
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        worker.pause()  # type: ignore[attr-defined]
        yield
        look(worker)
        for number in range(5):
            cluster.produce("in", b"1", f"{number}".encode())
        look(worker)
        worker.stop()  # type: ignore[attr-defined]
        return {}

    app._errand = errand
    cluster.run(app)
    first, second = seen
    assert first.paused
    assert first.lag is not None
    assert second.lag == first.lag + 5
