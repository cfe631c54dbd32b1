"""A shadow as a program: the processor's own functions, run once more beside it, and nothing left of it afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.waiting import retry, wait_until
from holdfast.processors.engine import required_topics
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.deployment import POLL_S, Rollout, how_it_ended, look, what_is_missing
from holdfast.processors.lifecycle.plans.apply import Done, Tell
from holdfast.processors.lifecycle.plans.stages import RunProcessor
from holdfast.processors.lifecycle.ports import World

#: A shadow has one process, whatever the processor has.
SLOT = "0"
#: How long a shadow may take until it works on every partition, its own state restored, seconds.
START_S = 600.0
#: How long what it leaves may take to be gone, seconds: a member that was killed stays as long as its session.
GONE_S = 120.0
#: So often a shadow is started before it counts as one that can't work.
STARTS_MAX = 2


class ShadowFailed(HoldfastError):
    """What builds a store anew does not work. Fields: processor, store."""


class Runs(Protocol):
    """Brings a processor up; see ``execution.Runner``."""

    def run(self, processor: str, stage: RunProcessor, tell: Tell) -> Done:
        """Have every slot run so."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What rebuilding acts through.

    Args:
        world: Deployer, registry, paths.
        topics: Kafka.
        runner: Brings the processor itself up.
        rollout: How a processor runs now.
        client: How to talk to the worker of a processor in a slot.
        shadow: The topology of the shadow of a processor's store.
        state_dir: The root of a processor's local state.
    """

    world: World
    topics: Any
    runner: Runs
    rollout: Callable[[str], Rollout]
    client: Callable[[str, str], ProcessorClient]
    shadow: Callable[[str, str], Topology]
    state_dir: Callable[[str], Path]


class ShadowProgram:
    """Starts and removes shadows.

    Args:
        machine: What it acts through.
    """

    def __init__(self, machine: Machine) -> None:
        self._on = machine

    def create(self, processor: str, store: str, tell: Tell) -> Done:
        """Make the shadow's changelogs, and have it run."""
        topology, topics = self._on.shadow(processor, store), self._on.topics
        facts = required_topics.read_facts(topics, topology)
        brokers = required_topics.brokers_if_asked(topics, topology, facts)
        required_topics.apply(required_topics.plan(topology, facts, brokers), topics)
        self.running(processor, store, tell)
        return Done(f"{topology.processor} runs beside {processor}; it sends nothing")

    def running(self, processor: str, store: str, tell: Tell) -> ProcessorClient:
        """The shadow, started where it does not run, once it works on every partition."""
        world, topology = self._on.world, self._on.shadow(processor, store)
        group = topology.processor
        rollout = replace(self._on.rollout(processor), options=())
        spec = rollout.program(SLOT, world)
        spec = replace(
            spec,
            name=world.paths.program(group, SLOT),
            command=(*spec.command, "--shadow", store),
            # A port that was chosen is the processor's own.
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
                    f"{group} does not work on every partition after {START_S:.0f} s.",
                    action=f"Read {spec.stdout_path}, then go on with the apply.",
                    processor=processor,
                    store=store,
                )
            tell(f"{group} starts: {'silent' if status is None else status.phase}")
            time.sleep(POLL_S)

    def stop(self, processor: str, store: str) -> None:
        """Stop it gently; what it has read is committed."""
        group = self._on.shadow(processor, store).processor
        self._on.world.deployer.stop_program(self._on.world.paths.program(group, SLOT))

    def remove(self, processor: str, store: str) -> Done:
        """Leave nothing of the shadow: program, topics, offsets, local state."""
        topology, topics, paths = self._on.shadow(processor, store), self._on.topics, self._on.world.paths
        group = topology.processor
        self._on.world.deployer.start()
        self._on.world.deployer.remove(paths.program(group, SLOT))
        names = [spec.topic.name for spec in topology.changelogs]
        there = topics.describe(names)
        for name in there:
            topics.delete(name)
        wait_until(lambda: not topics.describe(names), GONE_S, every_s=POLL_S)
        self._delete_group(group)
        endpoint = paths.endpoint(group, SLOT)
        for file in (endpoint, endpoint.with_suffix(".failed.json")):
            file.unlink(missing_ok=True)
        shutil.rmtree(self._on.state_dir(processor) / group, ignore_errors=True)
        return Done(f"{len(there)} topic(s), the offsets and the local state of {group} removed")

    def _delete_group(self, group: str) -> None:
        """A member that was killed is in it for as long as its session lasts."""
        delete = partial(self._on.topics.delete_group, group)
        retry(delete, lambda failed: isinstance(failed, KafkaFailed), GONE_S, every_s=POLL_S)

    def _ended(self, processor: str, store: str, program: str, seen: Any) -> ShadowFailed:
        world = self._on.world
        error = None if seen is None else seen.error
        how = how_it_ended(world.deployer.programs()[program]) if program in world.deployer.programs() else "gone"
        said = f" It says: {error.get('message')}" if error else ""
        return ShadowFailed(
            f"What builds {store} anew ended ({how}).{said}",
            action=str((error or {}).get("action") or f"Read the log of {program}, then go on with the apply."),
            processor=processor,
            store=store,
        )
