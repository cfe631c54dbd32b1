"""After the embedded broker was killed: expires its old registration before the restart. Works around KAFKA-20734.

A broker that restarts before its registration has expired still leads its partitions. It loads their transactions and
completes them. Then it registers again, and for a moment no partition has a leader. The transaction coordinator of
Kafka 4.1 to 4.4 treats a partition without a leader as deleted: it skips the partition's marker and marks the
transaction complete. Part of the transaction is then committed, and the rest hangs forever. With an expired
registration the broker starts without partitions, and gets all of them at one moment.

Invariants:
    - Only the controller runs here, on the metadata log; no topic's data is opened.
    - The controller has ended when ``expire_registration`` returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from holdfast.infra.system.process import end_process, start_detached, start_mark
from holdfast.infra.waiting import Deadline, wait_until

log = structlog.get_logger(__name__)

#: Broker session of the controller that runs alone, milliseconds.
SESSION_MS = 500
#: After this many seconds the controller has fenced every broker that was registered as alive.
FENCED_WITHIN_S = 4.0
#: How long the controller may take to end, seconds.
STOP_WITHIN_S = 5.0
_FENCED = re.compile(r"Fencing broker 1 .*BrokerRegistrationChangeRecord\(brokerId=1, [^)]*fenced=1", re.DOTALL)


def ended_uncleanly(data: Path) -> bool:
    """Whether the last broker on this data folder was killed; False when no broker ever ran on it."""
    return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()


def expire_registration(
    data: Path, java_command: Sequence[str], port: int, broker_log: Path, deadline: Deadline
) -> None:
    """Run the controller alone, on a free port, until it has fenced the dead broker.

    A failure is only logged, because the broker starts anyway and reports the cause better. ``broker_log`` is the log
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
        # Without a line about fencing, the registration had expired before.
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
    """The text of a properties file."""
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
