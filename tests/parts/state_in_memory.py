"""A worker on the in-memory cluster whose state can be asked, through the same routes as those of its HTTP server.

A query is answered between two turns of the worker's loop, so the worker stands still while a test asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, Partition
from holdfast.infra.settings import ServingSettings
from holdfast.processors.application import worker_start
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer, Later, Refused, Rules, judge
from holdfast.processors.engine.serving.routes import state_routes
from holdfast.processors.engine.serving.state.routes import StateRoutes
from holdfast.processors.testing.process import InlineProcess

#: Turns of the loop after which a worker without enough messages fails the test.
TURNS_MAX = 2_000
#: The token that reads the state of all stores.
TOKEN = "the-token-of-state"


class Asked:
    """The routes of state of a running worker.

    Args:
        advance: Lets seconds of virtual time pass while a query waits.
    """

    def __init__(self, routes: StateRoutes, guard: Guard, advance: Callable[[float], None]) -> None:
        self.routes = routes
        self._rules = Rules(guard, (), is_of_state=routes.serves)
        self._advance = advance

    def answer(self, target: str, *, token: str = TOKEN, **headers: str) -> Answer:
        """Returns the answer to a GET request."""
        told = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}", **headers}
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items()), "", ""]
        head = judge("\r\n".join(lines).encode(), self._rules)
        if isinstance(head, Refused):
            return Answer(head.code, {"error": head.why})
        found = self.routes.at_once(head) or self.routes.on_thread(head)
        while isinstance(found, Later):
            self._advance(0.1)
            found = found.again() or self.routes.on_thread(head)
        return found

    def json(self, target: str, **more: str) -> tuple[int, dict[str, Any]]:
        """Returns status and document of the answer to a GET request."""
        found = self.answer(target, **more)
        document: dict[str, Any] = json.loads(found.body if isinstance(found.body, bytes) else json.dumps(found.body))
        return found.code, document


def ask_worker(  # tidy: allow-wide because a worker's world has that many parts
    application: Application,
    cluster: InMemoryCluster,
    home: Path,
    ask: Callable[[Asked], None],
    *,
    processed: int = 0,
    serving: Mapping[str, Any] | None = None,
) -> None:
    """Runs a worker until it has committed its messages, and then calls ``ask``.

    Args:
        processed: The number of messages that are committed before; 0 asks before the worker has any task.
        serving: Settings of the HTTP server.
    """
    settings = ServingSettings(**{"state_token": TOKEN, **(serving or {})})
    guard = Guard(settings)

    def run(worker: Worker, group: str, slot: str, *_: object) -> None:
        asked = Asked(state_routes(worker, slot, home, settings, guard), guard, cluster.advance)
        step, turns = worker.maintenance.step, 0

        def look() -> None:
            nonlocal turns
            step()
            turns += 1
            assert turns < TURNS_MAX, f"{worker.processed} messages are processed; expected {processed}"
            if worker.stopping or worker.processed < processed:
                return
            if processed:
                worker.commit_now()
            worker.stop()
            ask(asked)

        worker.maintenance.step = look  # type: ignore[method-assign]
        with worker.global_tables.in_use():
            worker.run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_start, "run_worker", run)
        cluster.run(application)


def other_worker(cluster: InMemoryCluster, group: str, topics: Iterable[str], address: str) -> None:
    """Lets a worker of another machine join the group. It answers no query, because nothing listens at its address."""
    process = InlineProcess(cluster.clock, "other")
    member = cluster.connect(process).group_consumer(group, f"holdfast-{group}-other-0-@{address}")

    def ignore(partitions: list[Partition]) -> None:
        """Opens and closes nothing."""

    member.subscribe(list(topics), ignore, ignore, ignore)
