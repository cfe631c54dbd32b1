"""Dagster resources (Kafka, Holdfast's registry, supervisor, Spark): opened on first use, closed at the run's end.

Invariants:
    - Loading the definitions opens no connection and starts no thread and no JVM.
    - Each use of a resource reads the settings from the environment again.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import MaintenanceSettings, load_settings
from holdfast.orchestration.verbs import Verbs
from holdfast.orchestration.world import build_world, environment_of, open_registry
from holdfast.processors.lifecycle.ports import World

#: Timeout of the ping with which a sensor's tick checks that a broker answers, seconds.
PING_S = 3.0


class ClusterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The Kafka cluster of the settings; implements the protocol ``assets.ports.Cluster``."""

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
        """The number of brokers in the cluster, from the first broker that answers within PING_S.

        Raises:
            BrokerUnreachable: No broker answers.
        """
        return self.topics(PING_S).ping()


class RegistryResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The registry: the database of incidents, deployments, applies (executions of plans) and snapshots."""

    _registry: Registry | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["RegistryResource"]:
        """Context manager with the resource for a run; closes the resource's connections at the end of the run."""
        with closing(self):
            yield self

    @property
    def registry(self) -> Registry:
        """Holdfast's registry. The first use opens its database and migrates its schema."""
        if self._registry is None:
            self._registry = open_registry(load_settings())
        return self._registry

    def close(self) -> None:
        """Close the registry's connections, if they were opened."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None


class LifecycleResource(RegistryResource):
    """Supervisor, workers' status and registry of this machine; implements the protocol ``assets.ports.Lifecycle``."""

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
        """A ``Verbs`` object that plans and applies requests; ``who`` is the user name to record with applied plans."""
        return Verbs(load_settings(), self.registry, ClusterResource().topics(), who)


class WarehouseResource(RegistryResource):
    """The Spark session for the warehouse's tables: one for each run, started on first use.

    Implements the protocol ``assets.ports.Warehouse``.
    """

    _session: Any = PrivateAttr(default=None)

    def close(self) -> None:
        """Stop the Spark session and its JVM if they were started, and close the registry's connections."""
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
    """Resource name -> resource; assets and jobs declare these names as parameters."""
    return {"cluster": ClusterResource(), "lifecycle": LifecycleResource(), "warehouse": WarehouseResource()}
