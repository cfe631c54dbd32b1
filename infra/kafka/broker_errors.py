"""Errors of the embedded broker."""

from __future__ import annotations

from pathlib import Path

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE
from holdfast.infra.kafka.errors import KafkaFailed


class BrokerAlreadyRunning(KafkaFailed):
    """A broker runs on this folder; a second broker would destroy its data."""

    exit_code = EXIT_BAD_CONFIGURATION

    def __init__(self, folder: Path, pid: int, bootstrap: str) -> None:
        super().__init__(
            f"A broker already runs on {folder}: process {pid}, address {bootstrap}.",
            action="Use that broker, or stop it with `holdfast down`.",
            folder=str(folder),
            pid=pid,
            bootstrap=bootstrap,
        )


class PortTaken(KafkaFailed):
    """The configured port of the embedded broker is in use."""

    exit_code = EXIT_BAD_CONFIGURATION

    def __init__(self, port: int) -> None:
        super().__init__(
            f"Port {port} on 127.0.0.1 is in use by another program; the embedded broker needs this port.",
            action="Stop that program, or set `HOLDFAST_KAFKA__EMBEDDED_PORT` to a free port, or unset the variable.",
            port=port,
        )


class BrokerDidNotStart(KafkaFailed):
    """The embedded broker ended during its start, or did not answer in time."""

    exit_code = EXIT_BROKER_UNAVAILABLE

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"The embedded broker of {folder} did not start: {reason}",
            action=f"Read `{folder / 'broker.log'}` and `broker.out` beside it, mend the cause, run `holdfast up`.",
            folder=str(folder),
            reason=reason,
        )
