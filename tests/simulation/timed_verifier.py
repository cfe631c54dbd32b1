"""Checks the end of a simulation of windows, sessions and timers: their results and their stores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import decode_value, split_key
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.timed import ALARMS, SESSIONS, TIMERS, WINDOWS, TimedWorkload
from tests.simulation.timed_model import TimedExpected, check_state, expect_timed, waits
from tests.simulation.verifier import Content, Databases, FinalCheck, History, InvariantBroken, Seen
from tests.simulation.workload import OUTPUT


class TimedCheck(FinalCheck):
    """Checks the final state, after the whole input is processed and all due results are sent."""

    _workload: TimedWorkload
    _expected: TimedExpected

    def __init__(self, cluster: InMemoryCluster, workload: TimedWorkload, history: History, seen: Seen) -> None:
        super().__init__(cluster, workload, expect_timed(workload), history, seen)
        self._all_sent = self._all_done = False
        self._looked_at: object = None
        self._folded_at: object = None

    def settled(self) -> bool:
        """Whether all expected results are sent, and no further window, session or timer is due.

        Results that are due after the last message are sent in later commits.
        """
        if not self._all_sent and (extent := self._seen.extent(OUTPUT)) != self._looked_at:
            found, self._looked_at = self._sent(), extent
            right = self._expected.sent
            self._all_sent = all(Counter(of) <= Counter(found.get(place, ())) for place, of in right.items())
        if self._all_sent and not self._all_done and (extent := self._changelogs()) != self._folded_at:
            # Some results come with each message, and some were sent before a clear (deletion of all state). So the
            # results do not show whether more results are due. The content of the stores shows it.
            self._folded_at = extent
            self._history.observe()
            names = self._workload.names
            self._all_done = all(self._waiting(store) <= self._expected.waiting(store) for store in names)
        return self._all_done

    def _changelogs(self) -> list[object]:
        """Return a value that changes whenever the result of `_waiting` may change: the state of all changelog logs."""
        logs = [self._cluster._broker.log(place) for store in self._workload.names for place in self._places(store)]
        return [(log, log.end, log.last_stable) for log in logs]

    def _places(self, store: str) -> list[Partition]:
        return [self._history.partition(store, number) for number in range(len(self._workload.messages))]

    def _waiting(self, store: str) -> int:
        folded = [
            key for place in self._places(store) for key in self._history.fold(place, self._cluster.log_end(place))
        ]
        return sum(waits(store, split_key(key)[1]) for key in folded)

    def check_outputs(self) -> None:
        """Check that each result is sent as often as in the model, and in the model's order.

        Raises:
            InvariantBroken: A result is lost, wrong, doubled or out of order.
        """
        found, expected = self._sent(), self._expected.sent
        for key, branch in sorted(found.keys() | expected.keys()):
            seen, right = found.get((key, branch), []), expected.get((key, branch), [])
            name = f"{branch} of {key!r}"
            if lost := Counter(right) - Counter(seen):
                raise InvariantBroken("outputs", f"{name}: lost {sorted(lost)[:3]}, {lost.total()} in all")
            if wrong := set(seen) - set(right):
                raise InvariantBroken("outputs", f"{name}: sent, but never to be: {sorted(wrong)[:3]}")
            if not self._workload.exactly_once or self._seen.cleared:
                continue
            if more := Counter(seen) - Counter(right):
                raise InvariantBroken("outputs", f"{name}: more than once: {sorted(more)[:3]}, {more.total()} in all")
            if self._is_in_order(branch) and seen != right:
                raise InvariantBroken("outputs", f"{name}: in another order than their messages")

    def _is_in_order(self, branch: str) -> bool:
        """Whether the results of a branch are sent in the order of its messages.

        False for windows and sessions that are sent when they close, because several may close together. Also False for
        alarms, because they fire by the worker's clock.
        """
        work = self._workload
        return {WINDOWS: not work.window.final, SESSIONS: not work.session.final, TIMERS: True, ALARMS: False}[branch]

    def _sent(self) -> dict[tuple[bytes, str], list[str]]:
        found: dict[tuple[bytes, str], list[str]] = {}
        for _, record in self._seen.read(OUTPUT):
            assert record.key is not None
            assert record.value is not None
            value = json.loads(record.value)
            if self._workload.bare:
                value = {"of": WINDOWS, "sent": value}
            found.setdefault((record.key, value["of"]), []).append(json.dumps(value["sent"]))
        return found

    def _at_the_end(self, databases: Databases) -> Iterator[tuple[str, Path, Content]]:
        self._history.observe()
        return super()._at_the_end(databases)

    def _is_last(self, path: Path, meta: TaskMeta) -> bool:
        """Whether a database is final.

        At the end of the input, a database may lack the changelog records of the windows that closed last.
        """
        partition = int(path.name.rsplit("-", 1)[1])
        for store in self._stores_in(path):
            last = self._history.last(self._history.partition(store, partition))
            if last >= 0 and (store not in meta.stores or meta.stores[store].offset <= last):
                return False
        return True

    def _check_state(self, invariant: str, where: str, store: str, partition: int, held: Content) -> None:
        state = {split_key(key): decode_value(value) for key, value in held.items()}
        try:
            check_state(self._workload, self._expected.models[partition], store, state)
        except AssertionError as wrong:
            raise InvariantBroken(invariant, f"{where}: {wrong}") from wrong
