"""Resources: what runs and ticks act through, opened when first used and closed with the run.

Invariants:
    - Definitions load without any of them: no connection, no thread and no JVM before a run asks.
    - Settings are read from the environment at that moment, as everywhere.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import BaseModel, PrivateAttr

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.orchestration.rediscovery import adopt_what_runs
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.lifecycle.ports import World

if TYPE_CHECKING:
    from holdfast.orchestration.verbs import Verbs


#: How long brokers are asked for an answer where a tick waits for it, seconds.
PING_S = 3.0


class ClusterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The Kafka cluster of the settings."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers, now."""
        return bootstrap_servers(load_settings())

    @property
    def client_config(self) -> Mapping[str, str | int | float | bool]:
        """Security settings for every client."""
        return client_config(load_settings())

    def topics(self, timeout_s: float = 20.0) -> Topics:
        """Facts about topics, and the changes to them."""
        settings = load_settings()
        return Topics(bootstrap_servers(settings), client_config(settings), timeout_s=timeout_s)

    def ping(self) -> int:
        """The number of brokers that answer, asked for a short while.

        Raises:
            BrokerUnreachable: None does.
        """
        return self.topics(PING_S).ping()


class RegistryResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The memory of incidents, deployments, actions and snapshots."""

    _registry: Registry | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["RegistryResource"]:
        """Close what the run opened."""
        try:
            yield self
        finally:
            self.close()

    @property
    def registry(self) -> Registry:
        """The open registry, its schema up to date."""
        if self._registry is None:
            self._registry = open_registry(load_settings())
        return self._registry

    def close(self) -> None:
        """Let go of the connections."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None


class LifecycleResource(RegistryResource):
    """What deploys and recovers processors: supervisor, processors' answers, registry."""

    @property
    def world(self) -> World:
        """What deployment and recovery act through."""
        return build_world(self.paths, self.registry)

    @property
    def paths(self) -> Paths:
        """Names below the home folder."""
        return load_settings().paths

    @property
    def project(self) -> Path:
        """The folder that processors are started in."""
        return PROJECT

    @property
    def restore_target_s(self) -> float:
        """How long a restore of a whole changelog may take, seconds."""
        return load_settings().restore_target_s

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor; may hold secrets, never shown."""
        return environment_of(load_settings())

    def verbs(self, who: str) -> "Verbs":
        """Plans and applies, recorded as done by ``who``."""
        from holdfast.orchestration.verbs import Verbs  # which builds on this module

        settings = load_settings()
        return Verbs(settings, self.registry, Topics(bootstrap_servers(settings), client_config(settings)), who)


class WarehouseResource(RegistryResource):
    """Spark and the tables: one session for each run, started when first asked for."""

    _session: Any = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["WarehouseResource"]:
        """End the session, and its JVM, with the run."""
        try:
            yield self
        finally:
            if self._session is not None:
                from holdfast.infra.spark.session import stop_spark

                stop_spark(self._session)
                self._session = None
            self.close()

    @property
    def session(self) -> Any:
        """The run's session."""
        if self._session is None:
            from holdfast.infra.spark.session import spark_session

            self._session = spark_session(load_settings(), app_name="holdfast-snapshots")
        return self._session

    @property
    def maintenance(self) -> Mapping[str, float]:
        """How tables are kept."""
        return load_settings().maintenance.model_dump()


def open_registry(settings: Settings) -> Registry:
    """The registry of the settings, its schema up to date; the caller closes it.

    One that was lost is made anew, and filled from what runs (``orchestration.rediscovery``).
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    registry = Registry(settings.registry)
    registry.migrate()
    adopt_what_runs(settings, registry)
    return registry


def build_world(paths: Paths, registry: Registry) -> World:
    """Everything that deployment and recovery act through, on this machine."""
    return World(
        deployer=open_deployer(paths),
        statuses=lambda processor, slot: ProcessorClient(processor, slot, paths),
        registry=registry,
        paths=paths,
    )


def environment_of(settings: Settings) -> dict[str, str]:
    """Settings as the environment variables that give them again."""
    return dict(_variables("HOLDFAST_", settings))


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


def build_resources() -> dict[str, dg.ConfigurableResource]:  # type: ignore[type-arg]
    """The resources by the keys that assets ask for."""
    return {
        "cluster": ClusterResource(),
        "lifecycle": LifecycleResource(),
        "warehouse": WarehouseResource(),
    }
