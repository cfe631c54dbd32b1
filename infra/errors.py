"""The root of every error that Holdfast raises on purpose.

An error carries what was seen, what was expected, and the operator's next step, as fields that a log line,
a check result or a test can read without parsing prose.

    HoldfastError
    ├── infra.*        the outside world (settings, Java, jars, broker, registry, supervisor)
    └── processors.*   the engine and the lifecycle of its state
"""

from __future__ import annotations

from typing import Any, Final

EXIT_PROCESSING_FAILED = 1
EXIT_BAD_CONFIGURATION = 64
EXIT_BROKER_UNAVAILABLE = 69
EXIT_DISK_FAILURE = 74

#: What an exit code alone tells of the cause, where nothing more is known.
CAUSE_OF_EXIT: Final = {EXIT_BAD_CONFIGURATION: "bad-configuration", EXIT_BROKER_UNAVAILABLE: "broker-away"}


class HoldfastError(Exception):
    """What went wrong, with the operator's next step.

    Args:
        message: What was seen and what was expected, one or two sentences.
        action: What to do about it, as an imperative sentence.
        cause: The kind of fault, where it is another than its class says.
        fields: Facts of the failure (topic, partition, path, offset, ...), kept for logs and tests.
    """

    #: The process exit code that tells a supervisor which kind of failure this was.
    exit_code: int = EXIT_PROCESSING_FAILED
    #: The kind of fault (``processors.lifecycle.recovery.faults``). It never changes: recovery decides by it.
    cause: str = ""

    def __init__(self, message: str, *, action: str, cause: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.cause = cause or type(self).cause or CAUSE_OF_EXIT.get(self.exit_code, "")
        self.message = message
        self.action = action
        self.fields = fields

    def __str__(self) -> str:
        """The message followed by the action."""
        return f"{self.message} What to do: {self.action}"

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: type, cause, message, action and fields."""
        return {
            "type": type(self).__name__,
            "cause": self.cause,
            "message": self.message,
            "action": self.action,
            "fields": {name: value if _is_plain(value) else str(value) for name, value in self.fields.items()},
        }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
