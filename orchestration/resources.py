"""Dagster resources (Kafka, registry, supervisor, Spark): opened on first use, closed at the end of the run.

Invariants:
    - Loading the definitions opens no connection and starts no thread and no JVM.
    - Settings are read from the environment on each use.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import MaintenanceSettings, load_settings
from holdfast.orchestration.verbs import Verbs
from holdfast.orchestration.world import build_world, environment_of, open_registry
from holdfast.processors.lifecycle.ports import World

#: Timeout of a ping of the brokers in a sensor's tick, seconds.
PING_S = 3.0


class ClusterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """``assets.ports.Cluster``: the Kafka cluster of the settings."""

    @property
    def bootstrap(self) -> str:
        return bootstrap_servers(load_settings())

    @property
    def client_config(self) -> Mapping[str, str | int | float | bool]:
        return client_config(load_settings())

    def topics(self, timeout_s: float = 20.0) -> Topics:
        settings = load_settings()
        return Topics(bootstrap_servers(settings), client_config(settings), timeout_s=timeout_s)

    def ping(self) -> int:
        """The number of brokers that answer within PING_S.

        Raises:
            BrokerUnreachable: No broker answers.
        """
        return self.topics(PING_S).ping()


class RegistryResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The registry of incidents, deployments, applies and snapshots."""

    _registry: Registry | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["RegistryResource"]:
        """Close at the end of the run."""
        with closing(self):
            yield self

    @property
    def registry(self) -> Registry:
        """The registry, opened and migrated on first use."""
        if self._registry is None:
            self._registry = open_registry(load_settings())
        return self._registry

    def close(self) -> None:
        """Close the registry's connections, if any."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None


class LifecycleResource(RegistryResource):
    """``assets.ports.Lifecycle``: supervisor, workers' status and registry of this machine."""

    @property
    def world(self) -> World:
        return build_world(load_settings(), self.registry)

    @property
    def paths(self) -> Paths:
        return load_settings().paths

    @property
    def project(self) -> Path:
        return load_settings().workers_directory

    @property
    def restore_target_s(self) -> float:
        return load_settings().restore_target_s

    def environment(self) -> dict[str, str]:
        return environment_of(load_settings())

    def verbs(self, who: str) -> Verbs:
        """``Verbs`` that record their applies under the name ``who``."""
        return Verbs(load_settings(), self.registry, ClusterResource().topics(), who)


class WarehouseResource(RegistryResource):
    """``assets.ports.Warehouse``: Spark and the tables, with one session for each run, started on first use."""

    _session: Any = PrivateAttr(default=None)

    def close(self) -> None:
        """Stop the session and its JVM, if any, and close the registry's connections."""
        if self._session is not None:
            from holdfast.infra.spark.session import stop_spark

            stop_spark(self._session)
            self._session = None
        super().close()

    @property
    def session(self) -> Any:
        if self._session is None:
            from holdfast.infra.spark.session import spark_session

            self._session = spark_session(load_settings(), app_name="holdfast-snapshots")
        return self._session

    @property
    def maintenance(self) -> MaintenanceSettings:
        return load_settings().maintenance


def build_resources() -> dict[str, dg.ConfigurableResource]:  # type: ignore[type-arg]
    """The resources by the names that assets and jobs use."""
    return {"cluster": ClusterResource(), "lifecycle": LifecycleResource(), "warehouse": WarehouseResource()}
