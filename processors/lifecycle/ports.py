"""The interfaces (ports) that deployments and recovery use: supervisor, worker statuses, registry, paths and clock.

The deployer is a port with one implementation for each platform (``infra.deploy.deployer``). The registry is one class
on top of SQLAlchemy, which supports several databases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from holdfast.infra.errors import HoldfastError

# Imported for types only, because these modules import SQLAlchemy and alembic, which most users do not need.
if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.deploy.deployer import Deployer
    from holdfast.infra.paths import Paths
    from holdfast.processors.engine.serving.status import ProcessorStatus


class ProcessorStatusSource(Protocol):
    """Reads the status of one processor instance; ``engine.serving.client.ProcessorClient`` implements it over HTTP."""

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """The status of the instance; None if it does not answer within the timeout."""

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """The time of the last heartbeat of the process with this pid; None without a heartbeat."""

    def last_failure(self) -> ProcessorStatus | None:
        """The status of the instance when it last ended with an error; None if it never ended with an error."""


class NotStarted(HoldfastError):
    """Workers were not started, or ended, failed or were not ready in time; their state is as it was before."""


def now_utc() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """The objects through which deployment and recovery read and change supervisor, workers, registry and files."""

    deployer: Deployer
    #: Function of processor and slot (place of one worker) that returns the reader of that worker's status.
    statuses: Callable[[str, str], ProcessorStatusSource]
    registry: Registry
    paths: Paths
    clock: Callable[[], datetime] = now_utc
    #: Function of a processor that returns its newest generation (deployment number) and code version, from the meta
    #: records in its changelogs. It returns None if there is no meta record. It also returns None where a read would
    #: take too long, as in a tick of a Dagster sensor.
    logged: Callable[[str], tuple[int, str] | None] = lambda processor: None
    #: Function of a processor that returns the members of its group that are workers of another installation, as texts.
    #: Empty if unknown, because no request is made or Kafka does not answer.
    strangers: Callable[[str], tuple[str, ...]] = lambda processor: ()
