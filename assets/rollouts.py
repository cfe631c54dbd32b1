"""Computes how to run a processor on this machine (its rollout): version, slots, settings and programs.

The source is the processor's deployed release (copied code), or its definition in the project's files.

Invariants:
    - A deployed version runs from its release, even if the definition's files have changed since the deployment.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.assets.ports import Lifecycle, Machine
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.running import rollout_of_release
from holdfast.processors.lifecycle.plans.slots import FIRST_SLOTS


def clients_of(processor: str, lifecycle: Lifecycle) -> list[ProcessorClient]:
    """A client for each worker of a processor; one client for slot 0 if the processor has no workers."""
    slots = slots_at_work(processor, lifecycle.world) or FIRST_SLOTS
    return [ProcessorClient(processor, slot, lifecycle.paths) for slot in slots]


def slots_now(processor: str, machine: Machine) -> tuple[str, ...]:
    """The slots (one for each worker) of the recorded deployment; slot 0 for a processor that is not deployed."""
    deployed = machine.world.registry.deployment(processor)
    return FIRST_SLOTS if deployed is None else deployed.slots


def rollout_of(definition: ProcessorDefinition, topics: Topics, machine: Machine) -> Rollout:
    """Returns how to run the processor in the version that the files define now: workers, inputs and environment."""
    names = [spec.name for spec in definition.topology.inputs]
    facts = topics.describe(names)
    return Rollout(
        processor=definition.name,
        code_version=definition.topology.code_version,
        slots=slots_now(definition.name, machine),
        inputs={name: facts[name].partitions for name in names if name in facts},
        environment=machine.environment(),
        project=machine.project,
    )


def deployed_rollout(
    processor: str, definition: Callable[[str], ProcessorDefinition], topics: Topics, machine: Machine
) -> Rollout:
    """Returns how to run the processor in its deployed version.

    If no release is recorded, this is the version that the project's files define.
    """
    registry = machine.world.registry
    deployed = registry.deployment(processor)
    release = None if deployed is None else registry.releases.of_version(processor, deployed.code_version)
    if deployed is None or release is None:
        return rollout_of(definition(processor), topics, machine)
    environment = settings_of(processor, release.release_id, machine)
    return rollout_of_release(release, topics, deployed.slots, environment, machine.project)


def settings_of(processor: str, release: str, machine: Machine) -> dict[str, str]:
    """The environment variables for workers of a release (deployed version), with the settings of its deployment."""
    return DeployedSettings(machine.world.paths).environment_of(processor, release, machine.environment())
