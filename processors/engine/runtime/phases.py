"""The phases of a worker."""

from __future__ import annotations

from enum import Enum

from holdfast.infra.kafka.errors import BrokerUnreachable


class Phase(Enum):
    """The phases of a worker; the docstring of ``runtime.loop`` shows the transitions."""

    STARTING = "starting"
    WARMING = "warming"
    JOINING = "joining"
    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    FAILED = "failed"


#: Seconds without a reachable broker after which a worker changes to the phase WAITING.
WAITING_AFTER_S = 5.0


def check_brokers(down_s: float, timeout_s: float, bootstrap: str) -> bool:
    """Returns whether the worker waits for brokers.

    Raises BrokerUnreachable after ``timeout_s`` without a reachable broker.
    """
    if down_s > timeout_s:
        raise BrokerUnreachable(
            f"No broker was reachable for {down_s:.0f} s.",
            action="Check the brokers; restart the processor when they are back. Nothing is lost.",
            bootstrap=bootstrap,
        )
    return down_s > WAITING_AFTER_S
