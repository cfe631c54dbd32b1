"""The routes of queries about a running worker: about its tasks, its standbys, and the rows of its global tables."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.infra.settings import ServingSettings
from holdfast.infra.system.server_tls import trusting
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.queries.placement import PartitionCounts
from holdfast.processors.engine.queries.service import StateService
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.task.facts import TaskFacts
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.state.peers import Access, Peers
from holdfast.processors.engine.serving.state.routes import StateRoutes

#: Seconds after which a client asks again for a row that can't be read. Only a new message of the topic changes it.
RETRY_UNREADABLE_S = 10.0


class WorkerTasks:
    """Implements ``HeldTasks`` for a running worker.

    The methods copy the worker's collections in one step, because the worker's loop changes them at any time.
    """

    def __init__(self, worker: Worker, slot: str) -> None:
        self._worker, self.slot = worker, slot
        self.topology, self.clock, self.freshness = worker.topology, worker.clock, worker.assignment.freshness

    def owned(self) -> Sequence[TaskFacts]:
        """All tasks that the group has assigned to this worker."""
        return self._worker.assignment.tasks

    def followed(self) -> Sequence[TaskFacts]:
        """The standbys of this worker."""
        return self._worker.assignment.standbys.tasks

    def restore_progress(self, task: str) -> Mapping[str, float | None] | None:
        """The progress of a restore, with ``remaining`` records and ``seconds_left``; None if none runs."""
        restore = self._worker.assignment.restoring.get(task)
        return None if restore is None else restore.progress(self.clock.monotonic())

    def global_row(self, topic: str, key: bytes) -> tuple[bool, Any]:
        """Returns whether a global table has a row of this key, and the row as the table's deserializer reads it.

        Raises:
            StateAway: The tables are not loaded yet, or the row can't be read.
        """
        if not self._worker.global_tables.is_loaded:
            raise StateAway("The global tables are being loaded.", waits=True)
        try:
            return self._worker.global_tables.row(topic, key)
        except Exception as failure:  # a user's deserializer may raise any error
            raise StateAway(
                f"The row in the global table {topic} can't be read: {type(failure).__name__}.",
                retry_after_s=RETRY_UNREADABLE_S,
                topic=topic,
            ) from failure


def state_routes(worker: Worker, slot: str, endpoints: Path, serving: ServingSettings, guard: Guard) -> StateRoutes:
    """Returns the routes of queries about a worker's state. ``endpoints`` is the folder of the endpoint files.

    Raises:
        TlsUnusable: The authorities of the settings can't be used.
    """
    cluster = worker.maintenance.cluster
    held = WorkerTasks(worker, slot)
    counts = PartitionCounts(worker.topology, cluster, worker.clock)
    topics = [*(frame.topic for frame in worker.frames.values())]
    forms = {topic.name: topic.formats.key_deserializer for topic in topics}
    group, own = worker.options.group, worker.committer.transactional_id
    tls = None if serving.tls_certificate is None else trusting(serving.tls_authorities)
    access = Access(guard.state_token, tls)
    peers = Peers(worker.topology, cluster, worker.clock, group, own, endpoints, access)
    return StateRoutes(StateService(held, counts, forms), peers, guard, worker.clock, held.global_row)


def advertised(serving: ServingSettings, port: int) -> str:
    """Returns host and port under which other workers reach a worker.

    A server that listens on all addresses is reached by the name of its machine.
    """
    host = serving.advertised or {"0.0.0.0": "", "::": ""}.get(serving.host, serving.host)  # noqa: S104 # nosec B104
    host = host or socket.gethostname()
    bare = host.rpartition("]")[2]
    if ":" in bare or (bare and ":" in host and not host.startswith("[")):
        return host if host.startswith("[") or host.count(":") == 1 else f"[{host}]:{port}"
    return f"{host}:{port}"
