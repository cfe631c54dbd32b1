"""Starts, stops and removes shadows.

A shadow runs a processor's functions a second time, as a separate program with its own consumer group. It builds a
store from the beginning of the source topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.system.rooted import remove_folder
from holdfast.infra.waiting import retry, wait_until
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.names import CHANGELOG_SUFFIX, shadow_group
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.deployment import what_is_missing
from holdfast.processors.lifecycle.deploy.keep_or_replace import POLL_S, look
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.wording import how_it_ended
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.execution import Runner
from holdfast.processors.lifecycle.ports import World

#: The name of the slot (worker process) of every shadow (second run of a processor). A shadow has only one process,
#: and its slot is separate from the processor's slots.
SLOT = "0"
#: Maximum seconds from the start of a shadow (second run) until it has restored its state and processes all partitions.
START_S = 600.0
#: Maximum seconds to wait until topics and group of a shadow (second run) can be deleted. A killed member stays in the
#: group until its session ends.
GONE_S = 120.0
#: Maximum number of starts of a shadow (second run) in one stage; then the stage fails.
STARTS_MAX = 2


class ShadowFailed(HoldfastError):
    """The shadow (second run of the functions) of a store cannot run, or its offsets differ from the processor's.

    Fields: ``processor``, ``store``.
    """


@dataclass(frozen=True, slots=True)
class Machine:
    """The objects with which a rebuild reads and changes Kafka and the supervisor.

    Args:
        world: Access to the supervisor, Holdfast's registry and the paths.
        topics: Access to Kafka topics and groups.
        runner: Starts the processor's own workers.
        rollout: Function of a processor that returns how to run it at present (rollout).
        client: Function of processor and slot (place of one worker) that returns the client of the worker in that slot.
        shadow: Function of processor and store that returns the topology of the shadow.
        state_dir: Function of a processor that returns the root folder of its local state.
        once: Function that returns the name of the present stage. If another run repeats the stage, the name is the
            same.
    """

    world: World
    topics: Topics
    runner: Runner
    rollout: Callable[[str], Rollout]
    client: Callable[[str, str], ProcessorClient]
    shadow: Callable[[str, str], Topology]
    state_dir: Callable[[str], Path]
    once: Callable[[], str] = lambda: ""


class ShadowProgram:
    """Starts, stops and removes shadows: programs that run a processor's functions a second time."""

    def __init__(self, machine: Machine) -> None:
        self._on = machine

    def create(self, processor: str, store: str, tell: ProgressLog) -> Done:
        """Create changelogs for the shadow (second run), start it, and wait until it processes every partition."""
        topology, topics = self._on.shadow(processor, store), self._on.topics
        facts = provisioning.read_facts(topics, topology)
        brokers = provisioning.brokers_if_asked(topics, topology, facts)
        provisioning.apply(provisioning.plan(topology, facts, brokers), topics)
        self.running(processor, store, tell)
        return Done(f"{topology.processor} runs beside {processor}; it sends nothing")

    def running(self, processor: str, store: str, tell: ProgressLog) -> ProcessorClient:
        """Start the shadow (second run) if it does not run, and wait until it processes all partitions.

        Returns the client of the shadow.

        Raises:
            ShadowFailed: The shadow ended after ``STARTS_MAX`` starts, or needed more than ``START_S`` seconds.
        """
        world, topology = self._on.world, self._on.shadow(processor, store)
        group = topology.processor
        rollout = replace(self._on.rollout(processor), options=())
        spec = rollout.program(SLOT, world)
        spec = replace(
            spec,
            name=world.paths.program(group, SLOT),
            command=(*spec.command, "--shadow", store),
            # The shadow (second run) uses any free port (0): the configured port belongs to the processor's own worker.
            environment={**spec.environment, "HOLDFAST_SERVING__PORT": "0"},
            stdout_path=world.paths.program_log(group, SLOT),
        )
        inputs = {spec.name: rollout.inputs[spec.name] for spec in topology.inputs if spec.name in rollout.inputs}
        world.deployer.start()
        world.deployer.apply(spec)
        starts, deadline = 0, time.monotonic() + START_S
        while True:
            program, seen = look(SLOT, group, world)
            if program is None or not program.alive:
                if starts == STARTS_MAX:
                    raise self._ended(processor, store, spec.name, seen)
                starts += 1
                world.deployer.start_program(spec.name)
            client = self._on.client(group, SLOT)
            status = client.status()
            if status is not None and status.phase == "running" and not what_is_missing(inputs, {SLOT: status}):
                return client
            if time.monotonic() > deadline:
                raise ShadowFailed(
                    f"{group} does not process every partition after {START_S:.0f} s.",
                    action=f"Read `{spec.stdout_path}`, then run `holdfast apply resume N`.",
                    processor=processor,
                    store=store,
                )
            tell(f"{group} starts: {'silent' if status is None else status.phase}")
            time.sleep(POLL_S)

    def stop(self, processor: str, store: str) -> None:
        """Stop the shadow (second run of the functions); before it ends, it commits all records that it has read."""
        group = self._on.shadow(processor, store).processor
        self._on.world.deployer.stop_program(self._on.world.paths.program(group, SLOT))

    def remove(self, processor: str, store: str) -> Done:
        """Delete program, topics, offsets and local state of the shadow (second run); it is safe to repeat this."""
        topics, paths = self._on.topics, self._on.world.paths
        group = shadow_group(processor, store)
        self._on.world.deployer.start()
        self._on.world.deployer.remove(paths.program(group, SLOT))
        names = self._changelogs(processor, store)
        there = topics.describe(names)
        for name in there:
            topics.delete(name)
        wait_until(lambda: not topics.describe(names), GONE_S, every_s=POLL_S)
        self._delete_group(group)
        endpoint = paths.endpoint(group, SLOT)
        for file in (endpoint, endpoint.with_suffix(".failed.json")):
            file.unlink(missing_ok=True)
        remove_folder(self._on.state_dir(processor), group)
        return Done(f"{len(there)} topic(s), the offsets and the local state of {group} removed")

    def _changelogs(self, processor: str, store: str) -> list[str]:
        """The shadow's changelogs, from its definition; if that cannot be used, all topics with such names.

        A shadow is a second run of the processor's functions.
        """
        try:
            return [spec.topic.name for spec in self._on.shadow(processor, store).changelogs]
        except HoldfastError:
            # The definition may no longer have the store, or may not be importable while a user repairs a function. The
            # removal of the shadow works without the definition.
            begin = f"{shadow_group(processor, store)}-"
            names = self._on.topics.names()
            return [name for name in names if name.startswith(begin) and name.endswith(CHANGELOG_SUFFIX)]

    def _delete_group(self, group: str) -> None:
        """Delete the group, with retries, because a killed member stays in the group until its session ends."""
        delete = partial(self._on.topics.delete_group, group)
        retry(delete, lambda failed: isinstance(failed, KafkaFailed), GONE_S, every_s=POLL_S)

    def _ended(self, processor: str, store: str, program: str, seen: Any) -> ShadowFailed:
        world = self._on.world
        error = None if seen is None else seen.error
        how = how_it_ended(world.deployer.programs()[program]) if program in world.deployer.programs() else "gone"
        said = f" Its error: {error.get('message')}" if error else ""
        return ShadowFailed(
            f"The shadow that rebuilds {store} ended ({how}).{said}",
            action=str((error or {}).get("action") or f"Read the log of {program}; then: `holdfast apply resume N`."),
            processor=processor,
            store=store,
        )
