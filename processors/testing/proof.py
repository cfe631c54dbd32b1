"""Runs one version on the last messages, in memory: ``python -m holdfast.processors.testing.proof``.

``Verbs`` starts it in a process of its own, for the new version and, when that one fails, for the running one.

Invariants:
    - Nothing is written to Kafka: inputs, changelogs and outputs are topics of the cluster in memory.
    - The state folder is a temporary one, also for an application with a ``state_dir`` of its own.
    - A message that failed is left out, and the others are run again, so each failure is found.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.log import configure_logging
from holdfast.infra.masking import masked
from holdfast.infra.settings import load_settings
from holdfast.processors.application import Application
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.proof import Failure, Material, Message, Outcome
from holdfast.processors.engine.required_topics import resolve
from holdfast.processors.engine.runtime.failures import ProcessingFailed
from holdfast.processors.engine.topology import Topology
from holdfast.processors.registration import find_processor
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster

#: Failing messages that are found; more say no more about a version.
FAILURES_MAX = 10
_PR_SET_PDEATHSIG = 1
#: Topic, partition, offset.
Place = tuple[str, int, int]


def main(arguments: list[str] | None = None) -> int:
    """Run one version, and write what came of it to the file of the result."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.processors.testing.proof")
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--release", help="folder with a copy of the version's code; comes first on the import path")
    parser.add_argument(
        "--parent", type=int, required=True, help="process id of the operator; this process ends with it"
    )
    given = parser.parse_args(arguments)
    _end_with(given.parent)
    if given.release is not None:
        sys.path.insert(0, given.release)
    material = msgspec.json.decode(given.material.read_bytes(), type=Material)
    try:
        settings = load_settings()
        configure_logging("ERROR", settings.log_format)
        outcome = prove(find_processor(settings, material.processor).application, material)
    except Exception as failed:  # whatever the user's module raises is the outcome
        text = failed.message if isinstance(failed, HoldfastError) else str(failed)
        outcome = Outcome(broken=f"{type(failed).__name__}: {masked(text)}")
    given.result.write_bytes(msgspec.json.encode(outcome))
    return 0


def prove(application: Application, material: Material) -> Outcome:
    """Run an application on the messages, from the state of their keys."""
    application.state_dir = None  # never the state of the worker that runs
    application.with_run_overrides(slot=None, auto_create_topics=True)
    failures: list[Failure] = []
    while True:
        outcome = _attempt(application, material, frozenset(each.place for each in failures))
        # A message behind a `group_by` has no place here, so it can not be left out.
        again = any(each in failures for each in outcome.failures)
        failures += [] if again else outcome.failures
        if again or outcome.broken or not outcome.failures or len(failures) >= FAILURES_MAX:
            return Outcome(outcome.processed, outcome.outputs, tuple(failures), outcome.broken)


def _attempt(application: Application, material: Material, left_out: frozenset[Place]) -> Outcome:
    """One run without the messages that failed before; ends at the next one that fails."""
    topology, cluster = application.topology(), InMemoryCluster(clock=VirtualClock(time.time()))
    real = _fill(cluster, topology, material, left_out)
    broken, found = "", []
    try:
        cluster.run(application)
    except ProcessingFailed as failed:
        found = [_failure(failed, real)]
    except HoldfastError as failed:
        broken = f"{type(failed).__name__}: {failed.message}"
    if broken:
        return Outcome(broken=broken)
    found += _dead_letters(cluster, topology, real)
    outputs = sum(len(cluster.read(spec.name)) for spec in topology.outputs)
    return Outcome(len(real) - len(found), outputs, tuple(found))


def _fill(
    cluster: InMemoryCluster, topology: Topology, material: Material, left_out: frozenset[Place]
) -> dict[Place, int]:
    """Create topics, state and messages; returns the real offset of each message in memory."""
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
            for key, value in (*pairs, (META_KEY, meta)):
                cluster.produce(name, value, key, partition=partition)
    places = [Partition(topic, n) for topic, count in widths.items() for n in range(count)]
    cluster.reset_offsets(topology.processor, dict.fromkeys(places, 0))
    real = {}
    for place, message in _messages(material, left_out):
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


def _failure(failed: ProcessingFailed, real: dict[Place, int]) -> Failure:
    topic, number, at = (failed.fields[name] for name in ("topic", "partition", "offset"))
    place = (str(topic), int(str(number)), int(str(at)))
    text = failed.message if failed.__cause__ is None else str(failed.__cause__)
    return Failure(place[0], place[1], real.get(place, place[2]), str(failed.fields["error"]), masked(text))


def _messages(material: Material, left_out: frozenset[Place]) -> Iterator[tuple[Partition, Message]]:
    for topic, partitions in material.messages.items():
        for number, messages in partitions.items():
            for message in messages:
                if (topic, number, message.offset) not in left_out:
                    yield Partition(topic, number), message


def _dead_letters(cluster: InMemoryCluster, topology: Topology, real: dict[Place, int]) -> list[Failure]:
    """The messages that the application put aside."""
    spec, found = topology.dead_letter, []
    for _, record in cluster.read(spec.name) if spec is not None else ():
        headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers or []}
        topic, partition = headers["holdfast.topic"], int(headers["holdfast.partition"])
        offset = real[topic, partition, int(headers["holdfast.offset"])]
        error, text = headers["holdfast.error.type"], headers["holdfast.error"]
        found.append(Failure(topic, partition, offset, error, text))
    return found


def _end_with(parent: int) -> None:
    """Ask the kernel to kill this process when the operator dies, and end if that happened before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the operator ended while the proof was starting")


if __name__ == "__main__":
    sys.exit(main())
