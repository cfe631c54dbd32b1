"""The Dagster resources that assets use, as protocols; ``orchestration.resources`` implements them.

Invariants:
    - Asset bodies use these protocols only; they read no settings and open no connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult
from holdfast.processors.lifecycle.plans.apply import Applied, ProgressLog
from holdfast.processors.lifecycle.plans.orphan_facts import OrphanFacts
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Request
from holdfast.processors.lifecycle.ports import World

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry


class Cluster(Protocol):
    """The Kafka cluster; resource key ``cluster``."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers."""

    @property
    def client_config(self) -> ClientConfig:
        """Security settings for every client."""

    def topics(self) -> Topics:
        """The client that describes, creates and changes topics."""


class Verbs(Protocol):
    """Plans and applies the verbs of the lifecycle."""

    def orphans(self) -> OrphanFacts:
        """The resources that no registered store owns."""

    def plan(self, request: Request) -> Plan:
        """The plan of a request; changes nothing."""

    def apply(self, plan: Plan, *, confirmed: str | None = ..., sure: bool = ..., tell: ProgressLog = ...) -> Applied:
        """Apply a plan."""

    @property
    def deployed(self) -> DeploymentResult | None:
        """The result of the last stage that started a processor; None if no stage did."""


class Machine(Protocol):
    """The part of ``Lifecycle`` that a rollout needs."""

    @property
    def world(self) -> World:
        """Supervisor, worker statuses and registry."""

    @property
    def project(self) -> Path:
        """The working folder of processors."""

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor; never log them, they may hold secrets."""


class Lifecycle(Machine, Protocol):
    """Deployment and recovery of processors; resource key ``lifecycle``."""

    @property
    def paths(self) -> Paths:
        """Folders and files below the home folder."""

    @property
    def restore_target_s(self) -> float:
        """The longest acceptable restore of a whole changelog, seconds."""

    def verbs(self, who: str) -> Verbs:
        """The verbs; the registry records ``who`` with each action."""


class Warehouse(Protocol):
    """Spark and the tables; resource key ``warehouse``."""

    @property
    def session(self) -> Any:
        """The run's Spark session; the first access starts it."""

    @property
    def registry(self) -> Registry:
        """The registry, which holds the shared state of snapshots."""

    @property
    def maintenance(self) -> MaintenanceSettings:
        """How long versions of tables are kept, and when tables are compacted."""
