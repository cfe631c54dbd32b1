"""The rollout of a processor on this machine: from its deployed release, or from its definition.

Invariants:
    - A deployed version runs from its release, also after the definition's files changed.
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
    """The part of ``ports.Lifecycle`` that a rollout needs."""

    @property
    def world(self) -> World:
        """Supervisor, worker statuses and registry."""
        ...

    @property
    def project(self) -> Path:
        """The working folder of processors."""
        ...

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor; never log them, they may hold secrets."""
        ...


def rollout_of(definition: ProcessorDefinition, topics: Topics, machine: Machine) -> Rollout:
    """The rollout of the definition's current version."""
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
    """The rollout of the deployed release, or of the definition where no release is recorded.

    Args:
        processor: The processor's name.
        definition: Finds the definition; called only where no release is recorded.
        topics: Gives the partition counts of the inputs.
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
