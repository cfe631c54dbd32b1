"""After the embedded broker died: have its old registration expire before it comes back.

A broker that comes back while it still counts as alive begins with the partitions that it led, loads their transactions
and goes on ending them; then it registers anew, and for a moment no partition has a leader. The transaction coordinator
of Kafka 4.1 to 4.4 takes a partition without leader for a deleted one, leaves its marker out and calls the transaction
complete (KAFKA-20734): a part of it is committed, the rest hangs for ever. Where the registration has expired before,
the broker begins with nothing, and is given all partitions at one moment.

Invariants:
    - Only the controller runs here, on the metadata alone; no topic's data is opened.
    - The controller is gone when this returns.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from holdfast.infra.process import end_process, start_mark

log = structlog.get_logger(__name__)

_SESSION_MS = 500
#: A controller that runs for so long has fenced every broker that it took for alive.
_FENCED_WITHIN_S = 4.0
_LOOK_EVERY_S = 0.05


def ended_uncleanly(data: Path) -> bool:
    """Whether the last broker on this data folder died; False when there was none."""
    return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()


def expire_registration(data: Path, java_command: Sequence[str], port: int, broker_log: Path, deadline: float) -> None:
    """Run the controller alone until it has given the dead broker up.

    What goes wrong here is no reason not to start the broker, which says more about it: it is only logged.

    Args:
        data: The broker's data folder.
        java_command: Java with its options and class path.
        port: A free one, for the controller.
        broker_log: Where the command makes Java log to.
        deadline: Monotonic seconds; not gone on with after it.
    """
    properties = data.parent / "controller.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in _controller(data, port).items()))
    from_here = broker_log.stat().st_size if broker_log.exists() else 0
    with (data.parent / "controller.out").open("wb") as out:
        process = subprocess.Popen(
            [*java_command, "kafka.Kafka", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=data.parent,
            start_new_session=True,
        )
    mark = start_mark(process.pid) or ""
    started_at: float | None = None
    try:
        while time.monotonic() < deadline and process.poll() is None:
            said = _since(broker_log, from_here)
            if re.search(
                r"Fencing broker 1 .*BrokerRegistrationChangeRecord\(brokerId=1, [^)]*fenced=1", said, re.DOTALL
            ):
                return
            if started_at is None and "Kafka Server started" in said:
                started_at = time.monotonic()
            if started_at is not None and time.monotonic() - started_at > _FENCED_WITHIN_S:
                return  # it counted as gone already
            time.sleep(_LOOK_EVERY_S)
        log.warning(
            "broker registration did not expire",
            ended=process.poll(),
            next="the broker is started all the same; a transaction that was just being committed may hang",
        )
    finally:
        end_process(process.pid, mark, timeout_s=5.0)
        process.wait()


def _controller(data: Path, port: int) -> dict[str, str | int]:
    return {
        "process.roles": "controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "broker.session.timeout.ms": _SESSION_MS,
        "broker.heartbeat.interval.ms": _SESSION_MS // 5,
    }


def _since(path: Path, offset: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
