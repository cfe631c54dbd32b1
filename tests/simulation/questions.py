"""Queries of workers' state at random points of a simulation, as threads of the HTTP server make them.

Each answer must equal the committed changelog at the position that the answer carries. Otherwise the worker refuses.
A query reads at one point (a place in a call of a process), also in the middle of a commit, a restore or a rebalance.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import Settings
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.queries.demand import Demand
from holdfast.processors.engine.queries.entries import StateKeys, StoreReader
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.queries.held_state import Elsewhere, Read, opened, spec_of
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.serving.state.worker_state import WorkerTasks
from holdfast.processors.engine.state.databases.database import DatabaseCorrupt
from holdfast.processors.engine.state.databases.views import NoView
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.groups import SESSION_TIMEOUT_S
from tests.simulation.schedule import Schedule
from tests.simulation.scheduler import SimulatedProcess, Step
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT
from tests.simulation.world import World

#: The committed state of one store and partition: changelog keys and stored values.
Content = dict[bytes, bytes]
#: A key that no message has.
NOBODY = b"nobody"
#: The number of questions to a worker that was frozen until now.
QUESTIONS = 4


class Logs:
    """All committed records of changelogs, also of topics that were deleted since, and those that compaction removed.

    Args:
        stores: The stores with changelogs.
    """

    def __init__(self, cluster: InMemoryCluster, stores: Iterable[str]) -> None:
        self._cluster = cluster
        self._topics = [changelog_topic(GROUP, store) for store in stores]
        self._records: dict[tuple[str, int], list[tuple[int, bytes, bytes | None]]] = {}
        self._at: dict[tuple[str, int], int] = {}
        self._before(cluster, "compact")
        self._before(cluster._broker, "delete")

    def _before(self, of: Any, name: str) -> None:
        """Observes before each call of a method that removes records."""
        original = getattr(of, name)

        def call(*given: Any, **named: Any) -> Any:
            self.observe()
            return original(*given, **named)

        setattr(of, name, call)

    def observe(self) -> None:
        """Keeps the records that are committed now."""
        for name in self._topics:
            topic = self._cluster._broker.topics.get(name)
            for number, log in enumerate(topic.logs if topic is not None else ()):
                place = topic.topic_id, number  # type: ignore[union-attr]
                at = self._at.get(place, 0)
                if at >= log.end:
                    continue
                entries, self._at[place] = log.read(at, log.end, committed=True)
                known = self._records.setdefault(place, [])
                known += [(each.offset, each.key, each.value) for each in entries if each.key not in (None, META_KEY)]

    def reaches(self, topic_id: str, number: int, end: int) -> bool:
        """Whether all records before an offset are committed and visible."""
        return self._at.get((topic_id, number), 0) >= end

    def fold(self, topic_id: str, number: int, end: int) -> Content:
        """The state that the records before an offset make."""
        state: Content = {}
        for offset, key, value in self._records.get((topic_id, number), ()):
            if offset >= end:
                break
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state


class Asker:
    """Asks workers for state at random points, and checks the answers.

    Args:
        cluster: The simulated cluster.
        stores: The stores to ask for, which have changelogs.
        workers: Returns the workers that run now and are not frozen, with their slots.
        fail: Called with a broken invariant.
        random: Decides when, whom and what to ask. No other part uses it, so queries change no other draw.
        passive: Whether a query changes nothing in a worker. Otherwise, the query of a doubted owner makes it commit.
        share: The probability that a point has a query.
    """

    def __init__(
        self,
        cluster: InMemoryCluster,
        stores: Iterable[str],
        workers: Callable[[], list[tuple[str, Worker]]],
        fail: Callable[[InvariantBroken], None],
        random: Random,
        *,
        passive: bool,
        share: float,
    ) -> None:
        self.answers: Counter[str] = Counter()
        #: Checks of each answer beside those of this class.
        self.checks: list[Callable[[str, int, Read, Content], None]] = []
        self.logs = Logs(cluster, stores)
        self._cluster, self._workers, self._fail, self._random = cluster, workers, fail, random
        self._passive, self._share, self._stores = passive, share, tuple(stores)
        #: Answers whose commits are not visible yet: topic id, partition, offset, content, and words about the answer.
        self._waiting: list[tuple[str, int, int, Content, str]] = []
        #: The group's offsets, each with the monotonic time at which they were seen.
        self._seen: list[tuple[float, dict[Partition, int]]] = []
        #: The time of day at which the monotonic clock began, and whether it has changed.
        self._began_at: float | None = None
        self._clock_was_set = False
        self._busy = False
        #: Draws the positions that queries demand.
        self._positions = Random(0)

    def passed(self) -> None:
        """Called at each point (a place in a call of a process); may ask a random worker."""
        if self._busy or self._random.random() >= self._share:
            return
        if workers := self._workers():
            self.ask(
                *self._random.choice(workers), Demand(stale_ok_s=self._random.choice([None, None, 0.5, 60.0, 1e6]))
            )

    def ask(self, slot: str, worker: Worker, demand: Demand) -> None:
        """Ask one worker for a random partition of a random store. A wrong answer fails the simulation."""
        self._busy = True  # a check may pass points, which have no query
        try:
            self._ask(slot, worker, demand)
        except InvariantBroken as broken:
            self._fail(broken)
        finally:
            self._busy = False

    def _ask(self, slot: str, worker: Worker, demand: Demand) -> None:
        now, time_s = worker.clock.monotonic(), worker.clock.time()
        self._clock_was_set |= self._began_at is not None and abs(time_s - now - self._began_at) > 1e-3
        self._began_at = time_s - now
        self._seen = [*self._seen[-2_000:], (now, self._cluster.committed_offsets(GROUP))]
        store = self._random.choice(self._stores)
        if all(spec.name != store for spec in worker.topology.stores) or self._is_locked(worker):
            return
        _, sub = spec_of(worker.topology, store)
        number = self._random.randrange(len(self._cluster._broker.topics[sub.inputs[0]].logs))
        place = Partition(INPUT, number)
        if self._positions.random() < 0.2:  # as a client that reads its own write, and may be ahead of the worker
            demand = replace(demand, after={place: self._seen[-1][1].get(place, 0) + self._positions.choice([0, 0, 1])})
        asked = worker.assignment.freshness._is_asked
        try:
            with self._whole_answers(slot), opened(WorkerTasks(worker, slot), store, number, demand) as read:
                self._check(store, number, worker, read, demand)
                self.answers[read.position.source] += 1
        except StateAway as refused:
            self.answers["refused: " + re.sub(r"\d+", "N", refused.message)[:40]] += 1
        except (Elsewhere, DatabaseCorrupt) as refused:
            self.answers[type(refused).__name__] += 1
        finally:
            if self._passive:
                worker.assignment.freshness._is_asked = asked

    @contextmanager
    def _whole_answers(self, slot: str) -> Iterator[None]:
        """A context in which a view that ends fails the simulation: no other process runs during a query."""
        try:
            yield
        except NoView as ended:
            raise InvariantBroken("queries", f"a view of {slot} ended while it was read: {ended}") from ended

    @staticmethod
    def _is_locked(worker: Worker) -> bool:
        """Whether a view of this worker is being changed. A real query waits for the lock, and is answered later."""
        tasks = [*worker.assignment.tasks, *worker.assignment.standbys.tasks]
        locks: list[Any] = [task.store.views._changed for task in tasks if task.store is not None]
        return any(each._is_owned() for each in locks)

    def _check(self, store: str, number: int, worker: Worker, read: Read, demand: Demand) -> None:
        at, position = read.view.meta.stores.get(store), read.position
        content = dict(read.view.items(store))
        told = f"{position.source} {position.worker} answers for {store}[{number}] at {dict(position.inputs)}"
        self.logs.observe()
        if at is None:  # no commit has written to the store
            if content:
                raise InvariantBroken("queries", f"{told}, without a position: {content}")
        elif self.logs.reaches(at.topic_id, number, at.offset):
            self._compare(at.topic_id, number, at.offset, content, told)
        else:
            self._waiting.append((at.topic_id, number, at.offset, content, told))
        self._check_entries(store, worker, read, content, told)
        # An owner may be silent for its longest gap, and lose its tasks after a session.
        bound_s = worker.assignment.freshness.gap_s + SESSION_TIMEOUT_S
        self._check_age(number, read, bound_s if demand.stale_ok_s is None else demand.stale_ok_s, told)
        lacks = {each: at for each, at in demand.after.items() if position.inputs.get(each.topic, 0) < at}
        if lacks:
            raise InvariantBroken("queries", f"{told}, which is before the demanded {lacks}")
        for check in self.checks:
            check(store, number, read, content)

    def _compare(self, topic_id: str, number: int, end: int, content: Content, told: str) -> None:
        folded = self.logs.fold(topic_id, number, end)
        if content != folded:
            differ = sorted(key for key in content.keys() | folded.keys() if content.get(key) != folded.get(key))
            shown = [(split_key(key), content.get(key), folded.get(key)) for key in differ[:2]]
            raise InvariantBroken("queries", f"{told}, offset {end} of its changelog: {shown} (answer, changelog)")

    def _check_entries(self, store: str, worker: Worker, read: Read, content: Content, told: str) -> None:
        """Check what a client sees of one key, and that a key that nobody has is not there."""
        reader = StoreReader(read.view, spec_of(worker.topology, store)[0])
        keys = sorted({split_key(key)[0] for key in content})
        key = self._random.choice(keys) if keys else NOBODY
        found = {name: json.loads(bytes(raw)) for name, raw in reader.entries(key, StateKeys(), 1_000).state.items()}
        wanted = {
            name: decode_value(value)
            for (owner, name), value in ((split_key(each), stored) for each, stored in content.items())
            if owner == key and not name.startswith("__holdfast/")
        }
        if found != wanted or reader.entries(NOBODY, StateKeys(), 1):
            raise InvariantBroken("queries", f"{told}: key {key!r} has {found}, stored is {wanted}")

    def _check_age(self, number: int, read: Read, bound_s: float, told: str) -> None:
        """Check that the answer has everything that was committed before the longest time that it may be behind."""
        place, has = Partition(INPUT, number), read.position.inputs.get(INPUT, 0)
        if self._clock_was_set:
            return  # standbys go by the machine's clock
        now, committed = self._seen[-1]
        former = next((offsets for at, offsets in reversed(self._seen) if at <= now - bound_s), {})
        known = former.get(place, 0)
        # An operator may set the input back; then the former offset says nothing.
        if has < known <= committed.get(place, 0):
            raise InvariantBroken("queries", f"{told}; {bound_s:g} s ago, {known} was committed")

    def settle(self) -> None:
        """Compare the answers whose commits were not visible before. Call it after all transactions have ended.

        Raises:
            InvariantBroken: An answer was never committed, or is wrong.
        """
        self.logs.observe()
        for topic_id, number, end, content, told in self._waiting:
            if not self.logs.reaches(topic_id, number, end):
                raise InvariantBroken("queries", f"{told}, offset {end} of its changelog, which was never committed")
            self._compare(topic_id, number, end, content, told)
        self._waiting.clear()


class AskedWorld(World):
    """A simulation whose workers are asked for their state."""

    def __init__(self, schedule: Schedule, folder: Path, settings: Settings) -> None:
        super().__init__(schedule, folder, settings)
        self._frozen: set[str] = set()
        random = Random(f"questions of {schedule.seed}")
        self.asker = Asker(
            self.cluster, self.workload.names, self._asked_workers, self.fail, random, passive=False, share=0.1
        )

    def _asked_workers(self) -> list[tuple[str, Worker]]:
        return [
            (machine.slot, machine.app._worker)
            for machine in self.machines
            if machine.alive is not None
            and not machine.alive.frozen
            and machine.app is not None
            and machine.app._worker is not None
        ]

    def _on_point(self, process: SimulatedProcess, name: str) -> Step:
        self._ask_thawed()
        self.asker.passed()
        return super()._on_point(process, name)

    def _ask_thawed(self) -> None:
        """Ask the workers that were frozen until now, before they do anything else."""
        frozen = {each.alive.name for each in self.machines if each.alive is not None and each.alive.frozen}
        thawed, self._frozen = self._frozen - frozen, frozen
        for machine in self.machines if thawed else ():
            worker = None if machine.app is None else machine.app._worker
            if worker is not None and machine.alive is not None and machine.alive.name in thawed:
                for _ in range(QUESTIONS):
                    self.asker.ask(machine.slot, worker, Demand())

    def _run(self) -> None:
        super()._run()
        self.asker.settle()
