"""Checks a simulated installation after every verb (operator command): changelogs, workers' databases, and outputs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.lifecycle.plans.requests import Request
from tests.simulation.disk import content_of
from tests.simulation.lifecycle_model import Model
from tests.simulation.lifecycle_world import LifecycleWorld
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT, OUTPUT, expect


class LifecycleJudge:
    """Compares the simulated installation with a model of its expected state in plain Python."""

    def __init__(self, world: LifecycleWorld) -> None:
        self.world = world
        self.model = Model(world)
        #: Lines about the events, for people who read a failure.
        self.told: list[str] = []
        #: Outputs that were lost because the output topic was deleted.
        self.gone: Counter[tuple[int, int, str]] = Counter()

    def settle(self) -> None:
        """Wait until the workers have processed all input, if the processor should run.

        Afterwards the state can be compared.
        """
        raise NotImplementedError

    def changelogs(self) -> list[Partition]:
        """All partitions of all changelogs."""
        numbers = range(self.world.schedule.partitions)
        return [Partition(changelog_topic(GROUP, store), at) for store in self.world.workload.names for at in numbers]

    def is_consumed(self) -> bool:
        """Whether all input is processed and committed."""
        numbers = range(self.world.schedule.partitions)
        return all(self.world.consumed(number) == self.world.sent[number] for number in numbers)

    def check(self) -> None:
        """Check deployment, changelogs and databases against the model.

        No apply (execution of a plan) may be open, and no folder with state that was moved aside may be left over.
        """
        self.settle()
        found = self.world.registry.deployment(GROUP)
        alive = [program.alive for program in self.world.programs.values()]
        if found is not None and (found.desired != ("deployed" if self.model.up else "stopped") or self.is_odd(alive)):
            raise InvariantBroken("deployment", f"up: {self.model.up}, recorded {found.desired}, processes {alive}")
        if left := self.world.registry.journal.applies(open_only=True):
            raise InvariantBroken("journal", f"open: {left}")
        if left := [path for path in self.world.disk.paths if "aside" in path.name]:
            raise InvariantBroken("explain", f"left over: {left}")
        if self.changelogs()[0].topic not in self.world.cluster._broker.topics:
            return
        for place, store, number in self.places():
            self.check_state(f"changelog {place}", store, number, self.folded(place))
        if self.model.up:
            self.world.clock.call_later(60.0, lambda: None)
            self.world.until(
                lambda: (
                    len({number for _, number, _ in self.current()})
                    == len(self.places()) // len(self.world.workload.names)
                ),
                60.0,
                f"every partition has an owner's database: {self.told[-3:]}",
            )
        for path, number, content in self.current():
            for store in self.world.workload.names:
                prefix = store_prefix(store)
                held = {key[len(prefix) :]: value for key, value in content.items() if key.startswith(prefix)}
                self.check_state(f"database {path.parent.name}/{path.name}", store, number, held)

    def is_odd(self, alive: list[bool]) -> bool:
        """Whether processes run that should not run, or processes are missing that should run."""
        return not all(alive) if self.model.up else any(alive)

    def places(self) -> list[tuple[Partition, str, int]]:
        """All changelog partitions, each with its store and partition number."""
        names, numbers = self.world.workload.names, range(self.world.schedule.partitions)
        return [(Partition(changelog_topic(GROUP, store), at), store, at) for store in names for at in numbers]

    def folded(self, place: Partition) -> dict[bytes, bytes]:
        """Return the state that a changelog partition contains."""
        records = [record for number, record in self.world.cluster.read(place.topic) if number == place.number]
        latest = {record.key: record.value for record in records}
        return {key: value for key, value in latest.items() if key not in (None, META_KEY) and value is not None}

    def current(self) -> Iterator[tuple[Path, int, dict[bytes, bytes]]]:
        """The databases that are up to date with their changelogs: path, partition, content."""
        committed = self.world.cluster.committed_offsets(GROUP)
        lasts: dict[Partition, int] = {}
        for place, _, _ in self.places():
            offsets = [at.offset for number, at in self.world.cluster.read(place.topic) if number == place.number]
            lasts[place] = max(offsets, default=-1)
        for path in self.world.disk.paths:
            if path.parent.name.startswith(".") or not path.name.rpartition("-")[2].isdigit():
                continue
            content = self.world.disk.content(path)
            raw = content.get(META_KEY)
            meta = None if raw is None else TaskMeta.decode(raw)
            number = int(path.name.rpartition("-")[2])
            if meta is None or meta.restoring or meta.inputs.get(INPUT) != committed.get(Partition(INPUT, number)):
                continue
            own = [(place, meta.stores[store].offset) for place, store, at in self.places() if at == number]
            if all(offset > lasts[place] for place, offset in own):
                yield path, number, content

    def check_state(self, where: str, store: str, number: int, held: dict[bytes, bytes]) -> None:
        """Compare a store's content in one partition with the model."""
        seen = {key: decode_value(value) for key, value in held.items()}
        wanted = self.model.expected().states[store, number]
        for key in sorted(seen.keys() | wanted.keys()):
            if seen.get(key) != wanted.get(key):
                raise InvariantBroken(
                    "state",
                    f"{where}: {split_key(key)} is {seen.get(key)!r}, not {wanted.get(key)!r}; {self.told[-4:]}",
                )

    def sight(self) -> dict[str, Any]:
        """Return all that a refused plan must not change: topics, offsets, deployment, processes and databases."""
        broker, found = self.world.cluster._broker, self.world.registry.deployment(GROUP)
        seen: dict[str, Any] = {
            "topics": {
                name: (each.topic_id, dict(each.config), [(log.start, log.end) for log in each.logs])
                for name, each in broker.topics.items()
            },
            "offsets": self.world.cluster.committed_offsets(GROUP),
            "deployment": None if found is None else (found.desired, found.slots, found.generation),
            "processes": {name: (each.pid, each.alive) for name, each in self.world.programs.items()},
        }
        if not any(program.alive for program in self.world.programs.values()):
            whole = [path for path in self.world.disk.paths if not path.parent.name.startswith(".")]
            seen["disk"] = {path: self.held(path) for path in whole}
        return seen

    def held(self, path: Path) -> dict[bytes, bytes]:
        """Return the content of a database, even if it was downloaded as files and not opened yet."""
        files = self.world.disk._stored[path].files
        return self.world.disk.content(path) if files is None else content_of(files)

    def check_untouched(self, request: Request, before: dict[str, Any]) -> None:
        """Check that the request has changed nothing since ``before`` was taken by `sight`."""
        after = self.sight()
        if changed := [name for name in before if before[name] != after.get(name)]:
            raise InvariantBroken("explain", f"{request} was not to change anything; it changed {changed}")

    def outputs(self) -> Counter[tuple[int, int, str]]:
        """How often each output is in the output topic."""
        return Counter(_named(record.value, record.key) for _, record in self.world.cluster.read(OUTPUT))

    def check_outputs(self) -> None:
        """Check that each message was processed as often as the model expects."""
        counts = self.gone + self.outputs()
        wanted = {name: self.model.reads[name[:2]] for name in expect(self.world.workload).outputs}
        if counts != Counter(wanted):
            wrong = {name: (counts[name], wanted.get(name, 0)) for name in counts if counts[name] != wanted.get(name)}
            wrong |= {name: (0, often) for name, often in wanted.items() if name not in counts}
            raise InvariantBroken("outputs", f"sent, expected: {dict(list(wrong.items())[:5])}; {self.told}")


def _named(value: bytes | None, key: bytes | None) -> tuple[int, int, str]:
    assert value is not None
    assert key is not None
    document = json.loads(value)
    return document["p"], document["n"], key.decode()
