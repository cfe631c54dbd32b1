"""Builds the objects through which verbs and recovery see this machine: Holdfast's registry, supervisor, workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.deploy.program_files import asked_for
from holdfast.infra.errors import HoldfastError
from holdfast.infra.home import claim_home
from holdfast.infra.kafka.errors import AccessRefused
from holdfast.infra.settings import Settings
from holdfast.infra.settings.project_file import VARIABLE as PROJECT_VARIABLE
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.ports import World

if TYPE_CHECKING:
    from holdfast.infra.kafka.topics.topics import Topics
    from holdfast.processors.lifecycle.orphans.owned import Defined

#: Timeout of the Kafka request for the members of a consumer group, seconds.
ASKED_S = 3.0


def open_registry(settings: Settings) -> Registry:
    """Open and migrate the registry of the settings; the caller closes it.

    If the registry was lost, it is created again and filled from the running processors
    (``orchestration.rediscovery``).

    Raises:
        HomeNotUsable: The home folder can't be written, or belongs to another project.
    """
    claim_home(settings)
    registry = Registry(settings.registry)
    registry.migrate()
    if (asked := asked_for(settings.paths.supervisor / "programs")) and registry.knows_nothing():
        # Imported late, because it loads the engine. A command that only reads Holdfast's registry does not need it.
        from holdfast.orchestration.rediscovery import adopt_what_runs

        adopt_what_runs(settings, registry, asked)
    return registry


def build_world(settings: Settings, registry: Registry) -> World:
    """The ``World`` of this machine: its supervisor, the status of its workers, and Holdfast's registry."""
    paths = settings.paths
    return World(
        deployer=open_deployer(paths),
        statuses=lambda processor, slot: ProcessorClient(processor, slot, paths),
        registry=registry,
        paths=paths,
        strangers=_Strangers(settings, registry),
    )


class _Strangers:
    """Asks Kafka for workers of a processor that belong to another installation.

    After the first request that fails or times out, no further request is sent.
    """

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._silent = False

    def __call__(self, processor: str) -> tuple[str, ...]:
        """The members of a processor's group that belong to another installation, as text.

        Empty if the group has no such members, or if Kafka does not answer.
        """
        if self._silent:
            return ()
        # Imported late, because Kafka is asked only about a processor that does not work.
        from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
        from holdfast.infra.kafka.topics.topics import Topics
        from holdfast.processors.lifecycle.recovery.strangers import find_strangers

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
    """Folders, environment and supervisor of this machine; implements the protocol ``assets.ports.Machine``."""

    settings: Settings
    world: World

    @property
    def project(self) -> Path:
        """The working directory in which workers are started."""
        return self.settings.workers_directory

    def environment(self) -> dict[str, str]:
        """The environment variables with which a worker is started; their values may be secrets."""
        return environment_of(self.settings)


def newest_logged(settings: Settings, topics: Topics, processor: str) -> tuple[int, str] | None:
    """The newest deployment that wrote to the processor's changelogs: its generation (number) and its code version.

    The values are read from the meta records. None if the processor can't be imported here, or this client may not read
    its changelogs.

    Raises:
        HoldfastError: Kafka does not answer, or a newer version of Holdfast wrote a meta record.
    """
    # Imported late, because these modules load the engine and the Kafka client, which only this function needs.
    from holdfast.processors.application.registration import find_processor
    from holdfast.processors.lifecycle.world.changelog_meta import newest_generation

    try:
        logs = [spec.topic.name for spec in find_processor(settings, processor).topology.changelogs]
    except HoldfastError:
        return None  # The definition can't be imported, so the names of the changelogs are unknown.
    try:
        return newest_generation(topics, logs)
    except AccessRefused:
        return None


def defined(settings: Settings) -> Defined:
    """Topologies and state folders of the processors in the settings; their resources can't be orphans."""
    # Imported late, because loading the definitions imports the engine and the project's modules.
    from holdfast.processors.application.registration import ProcessorDefinition, load_processors
    from holdfast.processors.lifecycle.orphans.owned import Defined

    loaded = load_processors(settings)
    usable = [each for each in loaded if isinstance(each, ProcessorDefinition)]
    roots = (each.application.state_dir for each in usable)
    return Defined(
        tuple(each.topology for each in usable),
        frozenset(root for root in roots if root is not None),
        doubtful=len(usable) < len(loaded),
    )


def environment_of(settings: Settings) -> dict[str, str]:
    """Environment variables that give another process exactly these settings, even if the project file changes later.

    If the settings are those of a project, ``PYTHONPATH`` has the project's folder, so that the process can import the
    project's modules. The copied code of a release comes before the folder on the path.
    """
    same = {**dict(_variables("HOLDFAST_", settings)), PROJECT_VARIABLE: ""}
    if settings.project is None:
        return same
    former = os.environ.get("PYTHONPATH")  # tidy: allow-environment because Python defines this variable
    return {**same, "PYTHONPATH": os.pathsep.join([str(settings.project), *([former] if former else [])])}


def environment_of_services(settings: Settings) -> dict[str, str]:
    """The environment variables to add for Dagster's services, which inherit this process's variables.

    In a project, the services read the project file themselves. So an edit of the file takes effect when Dagster
    loads the definitions again.
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
