"""The Dagster resources that assets use, as protocols; ``orchestration.resources`` implements them.

Invariants:
    - The functions of assets use only these protocols. The functions read no settings and open no connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult
from holdfast.processors.lifecycle.plans.apply import Applied, ProgressLog
from holdfast.processors.lifecycle.plans.facts.orphans import OrphanFacts
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Request
from holdfast.processors.lifecycle.ports import World

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry


class Cluster(Protocol):
    """Access to the Kafka cluster; its resource key is ``cluster``."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers."""

    @property
    def client_config(self) -> ClientConfig:
        """The security settings for every Kafka client."""

    def topics(self) -> Topics:
        """The client that describes, creates and changes topics."""


class Verbs(Protocol):
    """Makes and carries out plans for verbs (kinds of changes, such as ``deploy``)."""

    def orphans(self) -> OrphanFacts:
        """The facts of resources that no registered store owns."""

    def plan(self, request: Request) -> Plan:
        """The plan of a request; changes nothing."""

    def apply(self, plan: Plan, *, confirmed: str | None = ..., sure: bool = ..., tell: ProgressLog = ...) -> Applied:
        """Apply a plan; ``confirmed`` is the hash of the plan that the user confirmed."""

    @property
    def deployed(self) -> DeploymentResult | None:
        """The result of the newest deployment that this object has carried out; None before the first deployment."""


class Machine(Protocol):
    """The part of the resource ``Lifecycle`` from which a rollout (how to run a processor) is computed."""

    @property
    def world(self) -> World:
        """Access to supervisor, worker statuses and Holdfast's registry."""

    @property
    def project(self) -> Path:
        """The working folder of processors, from which their modules are imported."""

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor. Never log them, because they may contain secrets."""


class Lifecycle(Machine, Protocol):
    """Deploys and recovers processors; its resource key is ``lifecycle``."""

    @property
    def paths(self) -> Paths:
        """The paths of all folders and files in the home folder."""

    @property
    def restore_target_s(self) -> float:
        """Maximum seconds that a restore of a whole changelog may take before a check warns."""

    def verbs(self, who: str) -> Verbs:
        """An object that plans and applies requests, for example a deploy.

        Holdfast's registry records ``who`` with each action.
        """


class Warehouse(Protocol):
    """Access to Spark and the tables; its resource key is ``warehouse``."""

    @property
    def session(self) -> Any:
        """The run's Spark session; the first access starts it."""

    @property
    def registry(self) -> Registry:
        """Holdfast's registry, which records the start and the end of each snapshot."""

    @property
    def maintenance(self) -> MaintenanceSettings:
        """Settings for the retention of table versions and for compacting tables."""
