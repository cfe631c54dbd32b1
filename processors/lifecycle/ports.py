"""The world of the lifecycle: the ports for its actions, and the limits that all its parts share.

The deployer is a port with one implementation for each platform (``infra.deploy.deployer``). The registry is one class
over SQLAlchemy, whose dialects are the database adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # these import SQLAlchemy and alembic, which most modules that use the ports do not need
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.deploy.deployer import Deployer
    from holdfast.infra.paths import Paths
    from holdfast.processors.engine.serving.status import ProcessorStatus


class ProcessorStatusSource(Protocol):
    """Reads the status of one processor instance; ``engine.serving.client.ProcessorClient`` implements it over HTTP."""

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """The status of the instance; None when it does not answer within the timeout."""

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """The last heartbeat of the process with this pid; None when it had none."""

    def last_failure(self) -> ProcessorStatus | None:
        """The status of the instance at its last end with an error; None when there was none."""


def now_utc() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """The ports that deployment and recovery act through."""

    deployer: Deployer
    #: Processor, slot -> status source of that instance.
    statuses: Callable[[str, str], ProcessorStatusSource]
    registry: Registry
    paths: Paths
    clock: Callable[[], datetime] = now_utc
    #: Processor -> newest generation of its deployment, and its code version, in the meta records of its changelogs.
    #: Returns None if there is none, or if reading would take too long, as in a sensor's tick.
    logged: Callable[[str], tuple[int, str] | None] = lambda processor: None
    #: Processor -> the members of its group that are workers of another installation, as texts. Empty if unknown,
    #: because Kafka is not asked or does not answer.
    strangers: Callable[[str], tuple[str, ...]] = lambda processor: ()
