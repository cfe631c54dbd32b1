"""A workload for the simulation: functions of messages, and schedules (functions that are called by the clock).

For each scheduled time (slot), a schedule's function is called once, whichever worker runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, fields
from typing import Any

from holdfast.processors.application.application import Application
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.verifier import Databases, FinalCheck, History, InvariantBroken, Seen
from tests.simulation.workload import INPUT, STORES, Expected, Workload

#: The store of the schedules, their output topic, and the milliseconds between two scheduled times (slots).
SLOTS_STORE, SLOTS, EVERY_MS = f"{INPUT}-schedules", "slots", 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledWorkload(Workload):
    """A workload with functions of messages, one schedule for each task, and one schedule for the processor.

    No schedule may skip a scheduled time.
    """

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, SLOTS_STORE)

    def stores_of(self, topic: str) -> tuple[str, ...]:
        return self.names

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        app = Workload.application(self, joined=False, **settings)
        to = app.topic(SLOTS)

        def tell(slot: Any) -> None:
            calls = slot.state.increment("calls")
            entries = sum(1 for _ in slot.items(STORES[0]))
            slot.send({"of": slot.name, "p": slot.partition, "at": slot.time, "calls": calls, "entries": entries})

        app.every(EVERY_MS, name="tasks", per="task", missed="all", to=to)(tell)
        app.every(3 * EVERY_MS, name="whole", missed="all", to=to)(tell)
        return app


def scheduled(workload: Workload) -> ScheduledWorkload:
    """The same workload with schedules added."""
    return ScheduledWorkload(**{each.name: getattr(workload, each.name) for each in fields(workload)})


class ScheduledCheck(FinalCheck):
    """The checks of functions and of scheduled times (slots).

    No slot is skipped or repeated, and the state of the schedules counts each slot once.
    """

    def __init__(
        self, cluster: InMemoryCluster, workload: Workload, expected: Expected, history: History, seen: Seen
    ) -> None:
        super().__init__(cluster, workload, expected, history, seen)

    def run(self, databases: Databases, excused: Set[int] = frozenset()) -> None:
        """Check outputs and state of functions, then the scheduled times (slots)."""
        super().run(databases, excused)
        self._check_slots()

    def _check_slots(self) -> None:
        fired: dict[tuple[str, int], list[dict[str, int]]] = {}
        for _, record in self._seen.read(SLOTS):
            one = json.loads(record.value or b"")
            fired.setdefault((one["of"], one["p"]), []).append(one)
        partitions = range(len(self._workload.messages))
        places = {("whole", 0), *(("tasks", number) for number in partitions)}
        if not places >= fired.keys():
            raise InvariantBroken("slots", f"slots fired in {sorted(fired.keys() - places)}")
        for (name, number), found in fired.items():
            step, where = EVERY_MS * (3 if name == "whole" else 1), f"schedule {name} of partition {number}"
            counts = Counter(one["at"] for one in found)
            expected = range(min(counts), max(counts) + 1, step)
            if left_out := [at for at in expected if at not in counts]:
                raise InvariantBroken("slots", f"{where} left out {left_out[:5]} of {len(expected)}")
            if set(counts) - set(expected):
                raise InvariantBroken("slots", f"{where} fired at {sorted(set(counts) - set(expected))[:5]}")
            doubled = [at for at, count in counts.items() if count > 1]
            if doubled and self._workload.exactly_once:
                raise InvariantBroken("slots", f"{where} fired twice: {doubled[:5]}")
            by_time = sorted({(one["at"], one["calls"]) for one in found})
            if [calls for _, calls in by_time] != list(range(1, len(by_time) + 1)):
                raise InvariantBroken("slots", f"{where} counted {by_time[:20]}")
