"""What assets need of the outside world, as protocols; ``orchestration.resources`` fulfils them.

Invariants:
    - Asset bodies know these names only; where settings come from and when connections open is not their business.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.kafka.topics import Topics
from infra.paths import Paths
from processors.lifecycle.ports import World

if TYPE_CHECKING:
    from infra.database.registry import Registry


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
