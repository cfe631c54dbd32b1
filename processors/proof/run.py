"""Runs one version on the last messages, in memory: ``python -m holdfast.processors.proof.run``.

``Prover`` starts this program in a separate process, once for the new version and once for the running version.

Invariants:
    - Nothing is written to Kafka: inputs, changelogs and outputs are topics of the cluster in memory.
    - No message and no state is in a file with a name. State is in memory, even for an application with a
      ``state_dir``. The messages, the state and the outcome are passed in open files without names.
    - After a failure, all other messages are processed again without the failed message, so that every failure is
      found.
    - ``drop_duplicates`` starts with an empty store. With its real store, it would drop all these messages as
      duplicates.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.log import configure_logging
from holdfast.infra.masking import masked
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.infra.settings import load_settings
from holdfast.processors.application.application import Application
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.provisioning import resolve
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.rocksdb import export
from holdfast.processors.engine.topology import Topology
from holdfast.processors.proof.documents import Failure, Material, Message, Outcome
from holdfast.processors.proof.step_coverage import StepCoverage
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster

#: Two maximum numbers of failing messages that are reported: in total, and of those that fail only after a
#: ``group_by``. The second is small, because several runs are needed to find the source message of such a failure.
FAILURES_MAX, BEHIND_MAX = 10, 3
_PR_SET_PDEATHSIG = 1
#: Topic, partition and offset of a message.
Place = tuple[str, int, int]
#: A message with its partition (topic and number).
Placed = tuple[Partition, Message]


def main(arguments: list[str] | None = None) -> int:
    """Run one version on the messages and state of a proof, and write the outcome to the result file."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.processors.proof.run")
    parser.add_argument("--material", type=int, required=True, help="descriptor of the open file with the material")
    parser.add_argument("--result", type=int, required=True, help="descriptor of the open file for the outcome")
    parser.add_argument("--seconds", type=float, required=True, help="longest run; then the traceback is logged")
    parser.add_argument("--release", help="folder with a copy of the version's code; comes first on the import path")
    parser.add_argument(
        "--parent", type=int, required=True, help="process id of the operator; this process ends with it"
    )
    given = parser.parse_args(arguments)
    _end_with(given.parent)
    faulthandler.dump_traceback_later(given.seconds, exit=True)
    if given.release is not None:
        sys.path.insert(0, given.release)
    with os.fdopen(given.material, "rb") as file:
        material = msgspec.json.decode(file.read(), type=Material)
    try:
        settings = load_settings()
        configure_logging("ERROR", settings.log_format)
        outcome = prove(find_processor(settings, material.processor).application, material)
    except Exception as failed:  # Any error of the user's code is reported as the result of this run.
        text = failed.message if isinstance(failed, HoldfastError) else str(failed)
        outcome = Outcome(broken=f"ended with {type(failed).__name__}: {masked(text)}")
    with os.fdopen(given.result, "wb") as file:
        file.write(msgspec.json.encode(outcome))
    return 0


def prove(application: Application, material: Material) -> Outcome:
    """Process the messages with an application whose stores start with the state of the messages' keys."""
    application.state_dir = None  # Without a state folder, this process never opens the state of the running worker.
    application.with_run_overrides(slot=None, auto_create_topics=True)
    replay = _Replay(application, material)
    failures: list[Failure] = []
    behind = 0
    while True:
        messages = replay.without({each.place for each in failures})
        tried = replay.run(messages)
        found = [each for each in tried.failures if each not in failures]
        if not found and tried.behind is not None and behind < BEHIND_MAX:
            found, behind = [replay.cause(messages, tried.behind)], behind + 1
        failures += found
        if tried.broken or not found or len(failures) >= FAILURES_MAX:
            break
    gaps = (*replay.gaps(), *replay.coverage.sources_without(material.messages))
    sent = dict(tried.sent)
    return Outcome(tried.processed, sent, tuple(failures), tried.broken, replay.coverage.missed(tried.between), gaps)


@dataclass(frozen=True, slots=True)
class _Tried:
    """The result of processing the messages once.

    ``behind`` is the first failure in an internal topic, for example in the repartition topic of a ``group_by``.
    ``between`` has the names of the internal topics to which the run wrote records.
    """

    processed: int
    sent: tuple[tuple[str, int], ...] = ()
    failures: tuple[Failure, ...] = ()
    behind: Failure | None = None
    broken: str = ""
    between: frozenset[str] = frozenset()


class _Replay:
    """Runs one version of an application on the given messages. If messages fail, it runs again without them."""

    def __init__(self, application: Application, material: Material) -> None:
        self._application = application
        self._material = material
        self._topology = application.topology()  # before ``StepCoverage`` adds counting steps
        self.coverage = StepCoverage({topic: frame.source for topic, frame in application.frames.items()})
        self._fresh = {node.store for node in self.coverage.nodes if node.store_use.drops_known and node.store}
        placed = [
            (Partition(topic, number), message)
            for topic, partitions in material.messages.items()
            for number, messages in partitions.items()
            for message in messages
        ]
        #: All messages, sorted by timestamp. Messages of one partition with equal timestamps stay in offset order.
        self._messages = sorted(placed, key=lambda each: each[1].timestamp_ms)

    def without(self, left_out: Set[Place]) -> list[Placed]:
        """All messages except those whose topic, partition and offset are in ``left_out``."""
        return [each for each in self._messages if _place(each) not in left_out]

    def gaps(self) -> tuple[str, ...]:
        """Returns a text for each store that lacks state in this test.

        A store without a changelog begins empty. A table with ``changelog="source"`` has only the newest rows.
        """
        bare = [each.name for each in self._topology.stores if each.name not in self._topology.logged]
        tables = sorted(log.store for log in self._topology.source_logs)
        return (
            *(f"store `{store}` began empty, as it has no changelog" for store in bare),
            *(f"table `{store}` had the last rows of its topic only" for store in tables),
        )

    def run(self, messages: Sequence[Placed]) -> _Tried:
        """Process the messages once.

        The run ends at the first message that fails, unless the application uses dead letters.
        """
        topology, cluster = self._topology, InMemoryCluster(clock=VirtualClock(time.time()))
        real = self._fill(cluster, messages)
        self.coverage.begin()
        found: list[Failure] = []
        try:
            cluster.run(self._application, databases=MemoryDatabases(export))
        except ProcessingFailed as failed:
            # The schema registry failed, not a message: so this version counts as not tested.
            if isinstance(failed.__cause__, SchemaRegistryFailed):
                return _Tried(0, broken=f"ended with {type(failed.__cause__).__name__}: {failed.__cause__.message}")
            found = [_failure(failed)]
        except HoldfastError as failed:
            return _Tried(0, broken=f"ended with {type(failed).__name__}: {failed.message}")
        found += _dead_letters(cluster, topology)
        direct = [_moved(each, real) for each in found if each.place in real]
        behind = next((each for each in found if each.place not in real), None)
        sent = tuple((spec.name, len(cluster.read(spec.name))) for spec in topology.outputs)
        between = frozenset(spec.topic for spec in topology.repartitions if cluster.read(spec.topic))
        return _Tried(len(messages) - len(direct), sent, tuple(direct), behind, between=between)

    def cause(self, messages: Sequence[Placed], behind: Failure) -> Failure:
        """Finds the source message that caused the failure of an internal record, after ``group_by`` or a join.

        The message is found by bisection: each run processes only the first n messages. The message with the smallest n
        at which an internal record fails is the cause.
        """
        good, bad = 0, len(messages)
        while bad - good > 1:
            middle = (good + bad) // 2
            tried = self.run(messages[:middle])
            if tried.behind is None:
                good = middle
            else:
                bad, behind = middle, tried.behind
        topic, number, offset = _place(messages[bad - 1])
        return Failure(topic, number, offset, behind.error, f"{behind.text} (behind `group_by` or a join)")

    def _fill(self, cluster: InMemoryCluster, messages: Sequence[Placed]) -> dict[Place, int]:
        """Creates topics, state and messages in the in-memory cluster.

        Returns a mapping: topic, partition and offset of a message in memory -> the message's offset in Kafka.
        """
        topology, material = self._topology, self._material
        facts = {topic: TopicFacts(topic, topic, count, 1, {}) for topic, count in material.partitions.items()}
        needed = {name: spec for name, (_, spec) in resolve(topology, facts).items()}
        between = {each.topic: needed[each.topic] for each in topology.repartitions}
        widths = {**{name: spec.partitions or 1 for name, spec in between.items()}, **material.partitions}
        for topic, partitions in widths.items():
            cluster.create_topic(topic, partitions, between[topic].config if topic in between else {})
        for changelog in topology.changelogs:
            inputs = dict.fromkeys(topology.inputs_of(changelog.store), 0)
            meta = ChangelogMeta(inputs, 0, topology.code_version, processor=topology.processor).encode()
            name, count = changelog.topic.name, needed[changelog.topic.name].partitions or 1
            cluster.create_topic(name, count, changelog.topic.config)
            for partition in range(count):
                pairs = material.state.get(changelog.store, {}).get(partition, ())
                for key, value in (*(() if changelog.store in self._fresh else pairs), (META_KEY, meta)):
                    cluster.produce(name, value, key, partition=partition)
        places = [Partition(topic, n) for topic, count in widths.items() for n in range(count)]
        cluster.reset_offsets(topology.processor, dict.fromkeys(places, 0))
        real = {}
        for place, message in messages:
            at = cluster.produce(
                place.topic,
                message.value,
                message.key,
                partition=place.number,
                timestamp_ms=message.timestamp_ms,
                headers=list(message.headers) or None,
            )
            real[place.topic, place.number, at] = message.offset
        return real


def _place(placed: Placed) -> Place:
    partition, message = placed
    return partition.topic, partition.number, message.offset


def _moved(failure: Failure, real: dict[Place, int]) -> Failure:
    return msgspec.structs.replace(failure, offset=real[failure.place])


def _failure(failed: ProcessingFailed) -> Failure:
    topic, number, at = (failed.fields[name] for name in ("topic", "partition", "offset"))
    text = failed.message if failed.__cause__ is None else str(failed.__cause__)
    return Failure(str(topic), int(str(number)), int(str(at)), str(failed.fields["error"]), masked(text))


def _dead_letters(cluster: InMemoryCluster, topology: Topology) -> list[Failure]:
    """The failures recorded in the dead-letter topic, with topics, partitions and offsets of the cluster in memory."""
    spec, found = topology.dead_letter, []
    for _, record in cluster.read(spec.name) if spec is not None else ():
        headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers or []}
        place = headers["holdfast.topic"], int(headers["holdfast.partition"]), int(headers["holdfast.offset"])
        found.append(Failure(*place, headers["holdfast.error.type"], headers["holdfast.error"]))
    return found


def _end_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent process dies; exit if the parent has already died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the operator ended while the proof was starting")


if __name__ == "__main__":
    sys.exit(main())
