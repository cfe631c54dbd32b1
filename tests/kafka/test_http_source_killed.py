"""kill -9 of a worker with an ``HttpSource`` on a real broker, under load from several clients.

Each client repeats a request until it is answered with 200. The events of each request are sent once.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants
from tests.parts.event_client import PatientClient

CLIENTS, REQUESTS, EVENTS = 6, 200, 4
#: Kills by the number of workers. Each second one loses its disk.
KILLS = {1: 2, 2: 4}


class Posted(Scenario):
    head = """
from holdfast.sources import HttpSource


def keep(value, state):
    return [value["number"], state.increment("n")]
"""

    @property
    def topology(self) -> str:  # type: ignore[override]
        return f"""
        sdf = made.dataframe(
            made.topic(group + "-in", value_deserializer="json"),
            source=HttpSource("events", {self.port}, key="key"),
        )
        sdf.apply(keep, stateful=True, store="kept").to_topic(made.topic(group + "-out"))
        """

    def prepare(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.over = False
        self.clients = [PatientClient(self.port, self.bodies(client), lambda: self.over) for client in range(CLIENTS)]

    def bodies(self, client: int) -> Iterator[tuple[str, bytes]]:
        for request in range(REQUESTS):
            first = (client * REQUESTS + request) * EVENTS
            events = [{"number": number, "key": f"k{number % 40}"} for number in range(first, first + EVENTS)]
            yield f"client {client}, request {request}", json.dumps(events).encode()

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for each in self.clients:
            each.start()
        for kill in range(KILLS[len(self.workers)]):
            yield Kill(self.has_more_results(150), "events of the clients", loses_disk=kill % 2 == 1)

    def truth(self) -> dict[str, Counter[Any]]:
        numbers = Counter(range(CLIENTS * REQUESTS * EVENTS))
        return {"in": numbers, "out": numbers}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, value: value["number"] if output == "in" else value[0])

    def check_running(self) -> None:
        self.killed.waiting(lambda: all(each.done for each in self.clients), "the answer 200 to each request")
        assert sum(each.repeated for each in self.clients) > 0, "no request was repeated: the kills came too late"

    def check_ended(self) -> None:
        assert [each.accepted for each in self.clients] == [REQUESTS] * CLIENTS
        keys = [name for (_, name) in self.stored("source-events") if name.startswith("key:")]
        assert len(keys) == CLIENTS * REQUESTS


@pytest.mark.parametrize("workers", variants([1, 2], tested=0))
def test_kill_9_neither_loses_nor_doubles_an_event_that_was_posted(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    scenario = Posted(stream, worker, workers)
    try:
        scenario.live()
    finally:
        scenario.over = True
