"""What assets need of the outside world, as protocols; ``orchestration.resources`` fulfils them.

Invariants:
    - Asset bodies know these names only; where settings come from and when connections open is not their business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.infra.kafka.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult
from holdfast.processors.lifecycle.plans.apply import Applied, Tell
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
        ...

    @property
    def client_config(self) -> Mapping[str, str | int | float | bool]:
        """Security settings for every client."""
        ...

    def topics(self) -> Topics:
        """Facts about topics, and the changes to them."""
        ...


class Verbs(Protocol):
    """Plans and applies on this machine's world."""

    def plan(self, request: Request) -> Plan:
        """Decide what a request would do; nothing is changed."""
        ...

    def apply(self, plan: Plan, *, confirmed: str | None = ..., sure: bool = ..., tell: Tell = ...) -> Applied:
        """Carry a plan out."""
        ...

    @property
    def deployed(self) -> DeploymentResult | None:
        """What the last stage that ran a processor came to."""
        ...


class Lifecycle(Protocol):
    """What deploys and recovers processors; resource key ``lifecycle``."""

    @property
    def world(self) -> World:
        """Supervisor, processors' own answers, and registry."""
        ...

    @property
    def paths(self) -> Paths:
        """Names below the home folder."""
        ...

    @property
    def project(self) -> Path:
        """The folder that processors are started in."""
        ...

    @property
    def restore_target_s(self) -> float:
        """How long a restore of a whole changelog may take, seconds."""
        ...

    def verbs(self, who: str) -> Verbs:
        """Plans and applies; ``who`` is recorded with everything that is done."""
        ...

    def environment(self) -> dict[str, str]:
        """The HOLDFAST_* variables of a processor; may hold secrets, never shown."""
        ...


class Warehouse(Protocol):
    """Spark and the tables; resource key ``warehouse``."""

    @property
    def session(self) -> Any:
        """The run's Spark session, started when first asked for."""
        ...

    @property
    def registry(self) -> Registry:
        """The memory of snapshots."""
        ...

    @property
    def maintenance(self) -> Mapping[str, float]:
        """How tables are kept: the numbers of the settings, by name."""
        ...
