"""Expires the old registration of a killed embedded broker before its restart. A workaround for KAFKA-20734.

If a broker restarts before its old registration has expired, it still leads its partitions, loads their transactions
and completes them. Then it registers again, and for a moment no partition has a leader. The transaction coordinator of
Kafka 4.1 to 4.4 treats a partition without a leader as deleted. It skips the partition's marker, and marks the
transaction as complete. Then a part of the transaction is committed, and the rest hangs forever. After the registration
has expired, the broker starts without partitions, and gets all of them at the same moment.

Invariants:
    - This module runs only a controller, on the metadata log. No topic's data is opened.
    - The controller has ended when ``expire_registration`` returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.infra.log import get_logger
from holdfast.infra.system.process import end_process, start_detached, start_mark
from holdfast.infra.waiting import Deadline, wait_until

log = get_logger(__name__)

#: Timeout of a broker's session in the configuration of this controller, milliseconds.
SESSION_MS = 500
#: Maximum seconds until the controller has fenced all brokers that were registered as alive.
FENCED_WITHIN_S = 4.0
#: Maximum seconds that the controller may take to end.
STOP_WITHIN_S = 5.0
_FENCED = re.compile(r"Fencing broker 1 .*BrokerRegistrationChangeRecord\(brokerId=1, [^)]*fenced=1", re.DOTALL)


def ended_uncleanly(data: Path) -> bool:
    """Whether the last broker on this data folder was killed; False if no broker ever ran on the folder."""
    return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()


def expire_registration(
    data: Path, java_command: Sequence[str], port: int, broker_log: Path, deadline: Deadline
) -> None:
    """Run a controller without a broker, on ``port``, until it has fenced the dead broker.

    A failure is only logged, because the broker is started anyway and then reports the cause. ``broker_log`` is the log
    file that ``java_command`` (Java with its options and class path) configures.
    """
    properties = data.parent / "controller.properties"
    properties.write_text(as_properties(_controller(data, port)))
    from_here = broker_log.stat().st_size if broker_log.exists() else 0
    command = [*java_command, "kafka.Kafka", str(properties)]
    process = start_detached(command, data.parent, data.parent / "controller.out")
    mark = start_mark(process.pid) or ""
    settled: Deadline | None = None

    def outcome() -> str:
        nonlocal settled
        lines = _since(broker_log, from_here)
        if settled is None and "Kafka Server started" in lines:
            settled = Deadline(FENCED_WITHIN_S)
        # If no line about fencing appears in time, the old registration had already expired.
        if _FENCED.search(lines) or (settled is not None and settled.passed):
            return "expired"
        return "" if process.poll() is None else "ended"

    try:
        if wait_until(outcome, deadline) != "expired":
            log.warning(
                "broker registration did not expire",
                ended=process.poll(),
                next="the broker starts all the same; a transaction that was committing at the kill may hang",
            )
    finally:
        end_process(process.pid, mark, timeout_s=STOP_WITHIN_S)
        process.wait()


def as_properties(settings: Mapping[str, str | int]) -> str:
    """The text of a Java properties file with these settings."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _controller(data: Path, port: int) -> dict[str, str | int]:
    return {
        "process.roles": "controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "broker.session.timeout.ms": SESSION_MS,
        "broker.heartbeat.interval.ms": SESSION_MS // 5,
    }


def _since(path: Path, offset: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
