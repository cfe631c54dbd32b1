"""The world of the lifecycle: the ports that it acts through, and the limits that all of its parts share.

The deployer is a port with one implementation for each platform (``infra.deploy.deployer``). The registry is one class
over SQLAlchemy, which has the databases as its own ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # these bring SQLAlchemy and alembic, which most modules that use the ports do not need
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.deploy.deployer import Deployer
    from holdfast.infra.paths import Paths
    from holdfast.processors.engine.serving.status import ProcessorStatus


class ProcessorStatusSource(Protocol):
    """Asks one processor instance for its status; ``engine.serving.client.ProcessorClient`` does it over HTTP."""

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """Its status; None when it does not answer within the timeout."""

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """The last heartbeat of the process with this pid; None when it had none."""

    def last_failure(self) -> ProcessorStatus | None:
        """Its status when it last ended with an error; None when it never did."""


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
    #: Returns None where there is none, and where reading them would take too long: in the tick of a sensor.
    logged: Callable[[str], tuple[int, str] | None] = lambda processor: None
    #: Processor -> the members of its group that are workers of another installation, in words. Empty where it is not
    #: known: nothing asks Kafka here, or Kafka does not answer.
    strangers: Callable[[str], tuple[str, ...]] = lambda processor: ()
