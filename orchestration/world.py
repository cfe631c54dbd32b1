"""The world of this machine for verbs and recovery: registry, supervisor, and status of workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import HoldfastError
from holdfast.infra.home import claim_home
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.errors import AccessRefused
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.settings.project_file import VARIABLE as PROJECT_VARIABLE
from holdfast.orchestration.rediscovery import adopt_what_runs
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.strangers import find_strangers
from holdfast.processors.lifecycle.world.changelog_meta import newest_generation

#: Timeout of the question which members a group has, seconds.
ASKED_S = 3.0


def open_registry(settings: Settings) -> Registry:
    """Open and migrate the registry of the settings; the caller closes it.

    A lost registry is created again and filled from the programs that run (``orchestration.rediscovery``).

    Raises:
        HomeNotUsable: As ``claim_home``.
    """
    claim_home(settings)
    registry = Registry(settings.registry)
    registry.migrate()
    adopt_what_runs(settings, registry)
    return registry


def build_world(settings: Settings, registry: Registry) -> World:
    """Supervisor, workers' status and registry of this machine, for deployment and recovery."""
    paths = settings.paths
    return World(
        deployer=open_deployer(paths),
        statuses=lambda processor, slot: ProcessorClient(processor, slot, paths),
        registry=registry,
        paths=paths,
        strangers=_Strangers(settings, registry),
    )


class _Strangers:
    """Asks Kafka for the workers of another installation; after one request without an answer, it sends no more."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._silent = False

    def __call__(self, processor: str) -> tuple[str, ...]:
        """The members of a processor's group now, as texts; empty if Kafka does not report them."""
        if self._silent:
            return ()
        settings, known = self._settings, self._registry.deployment(processor)
        try:
            topics = Topics(bootstrap_servers(settings), client_config(settings), timeout_s=ASKED_S)
            slots = 0 if known is None else len(known.slots)
            return find_strangers(processor, slots, topics.group_members, settings.paths.state, within_s=0.0)
        except HoldfastError:
            self._silent = True
            return ()


@dataclass(frozen=True)
class ThisMachine:
    """``assets.ports.Machine``: this machine's folders, environment and supervisor."""

    settings: Settings
    world: World

    @property
    def project(self) -> Path:
        """The working folder of processors."""
        return self.settings.workers_directory

    def environment(self) -> dict[str, str]:
        """The variables of a processor; they may hold secrets."""
        return environment_of(self.settings)


def newest_logged(settings: Settings, topics: Topics, processor: str) -> tuple[int, str] | None:
    """The newest generation of a deployment in the meta records of its changelogs, with its code version.

    Returns None when unknown: the processor is not defined here, or this client may not read its changelogs.

    Raises:
        HoldfastError: Kafka does not answer, or a record is of a newer Holdfast.
    """
    try:
        logs = [spec.topic.name for spec in find_processor(settings, processor).topology.changelogs]
    except HoldfastError:
        return None  # a definition that cannot be imported
    try:
        return newest_generation(topics, logs)
    except AccessRefused:
        return None


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment variables with which another process reads the same settings, even after the project changed.

    In a project, that process also imports modules from the project's folder; a release precedes the folder on the
    path.
    """
    same = {**dict(_variables("HOLDFAST_", settings)), PROJECT_VARIABLE: ""}
    if settings.project is None:
        return same
    former = os.environ.get("PYTHONPATH")  # tidy: allow-environment because it is Python's variable, and no setting
    return {**same, "PYTHONPATH": os.pathsep.join([str(settings.project), *([former] if former else [])])}


def environment_of_services(settings: Settings) -> dict[str, str]:
    """The environment for Dagster's services, which inherit this process's variables.

    In a project the processes read the project file themselves: an edit takes effect when the definitions are loaded
    again.
    """
    if settings.project is None:
        return environment_of(settings)
    return {PROJECT_VARIABLE: str(settings.project), "HOLDFAST_HOME": str(settings.home)}


def _variables(prefix: str, model: BaseModel) -> Iterator[tuple[str, str]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        variable = f"{prefix}{name.upper()}"
        if isinstance(value, BaseModel):
            yield from _variables(f"{variable}__", value)
        elif isinstance(value, tuple | dict):
            yield variable, json.dumps(value)
        elif value is not None:
            yield variable, str(value).lower() if isinstance(value, bool) else str(value)
