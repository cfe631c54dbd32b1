"""How processors are meant to run on this machine: from the release that is deployed, or from the definition.

Invariants:
    - What is deployed is run from its release, whatever became of the definition's files since.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.infra.kafka.topics import Topics
from holdfast.processors.lifecycle.deploy.deployment import Rollout
from holdfast.processors.lifecycle.deploy.running import rollout_of_release
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.registration import ProcessorDefinition

#: The slots of a processor on one machine.
SLOTS = ("0",)


class Machine(Protocol):
    """Where processors run."""

    @property
    def world(self) -> World:
        """Supervisor, processors' own answers, and registry."""
        ...

    @property
    def project(self) -> Path:
        """The folder that processors are started in."""
        ...

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor; may hold secrets, never shown."""
        ...


def rollout_of(definition: ProcessorDefinition, topics: Topics, machine: Machine) -> Rollout:
    """How a processor would run from its definition as it is now."""
    names = [spec.name for spec in definition.topology.inputs]
    facts = topics.describe(names)
    return Rollout(
        processor=definition.name,
        code_version=definition.topology.code_version,
        slots=SLOTS,
        inputs={name: facts[name].partitions for name in names if name in facts},
        environment=machine.environment(),
        project=machine.project,
    )


def deployed_rollout(
    processor: str, definition: Callable[[str], ProcessorDefinition], topics: Topics, machine: Machine
) -> Rollout:
    """How a processor is meant to run: the version that is deployed, from its release where there is one.

    Args:
        processor: Its name.
        definition: Finds the definition; only called where no release is recorded.
        topics: For the number of partitions of its inputs.
        machine: This machine.

    Raises:
        ProcessorUnknown: There is neither a release nor a definition.
    """
    registry = machine.world.registry
    deployed = registry.deployment(processor)
    release = None if deployed is None else registry.releases.of_version(processor, deployed.code_version)
    if deployed is None or release is None:
        return rollout_of(definition(processor), topics, machine)
    return rollout_of_release(release, topics, deployed.slots, machine.environment(), machine.project)
