"""The base class of every error that Holdfast raises on purpose.

Logs, checks and tests read the fields of an error; none of them parses its text.
"""

from __future__ import annotations

from typing import Any

from holdfast.infra.exit_codes import CAUSE_OF_EXIT, EXIT_BAD_CONFIGURATION, EXIT_PROCESSING_FAILED
from holdfast.infra.masking import masked, masked_data


class HoldfastError(Exception):
    """A failure with its facts and the operator's next step; secrets in its texts are masked (``infra.masking``).

    Args:
        message: What happened, with values, and what was expected; one or two sentences.
        action: The one command or edit that repairs the failure, as an imperative sentence.
        cause: The kind of fault; by default the ``cause`` of the class, else the one that the exit code implies.
        fields: Facts of the failure (topic, partition, path, offset, ...) for logs and tests.
    """

    #: Exit code of a process that this error ends; tells the supervisor the kind of failure.
    exit_code: int = EXIT_PROCESSING_FAILED
    #: The kind of fault (``processors.lifecycle.recovery.faults``). Recovery decides by it, so values never change.
    cause: str = ""

    def __init__(self, message: str, *, action: str, cause: str = "", **fields: Any) -> None:
        message = masked(message)
        super().__init__(message)
        self.cause = cause or type(self).cause or CAUSE_OF_EXIT.get(self.exit_code, "")
        self.message = message
        self.action = masked(action)
        self.fields = {name: masked_data(value) for name, value in fields.items()}

    def __str__(self) -> str:
        """The message followed by the action."""
        return f"{self.message} What to do: {self.action}"

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: ``type``, ``cause``, ``message``, ``action`` and ``fields``."""
        return {
            "type": type(self).__name__,
            "cause": self.cause,
            "message": self.message,
            "action": self.action,
            "fields": {name: value if _is_plain(value) else str(value) for name, value in self.fields.items()},
        }


def in_one_line(told: str) -> str:
    """The first line of an error that was recorded as text, for a text that has its own action.

    The error's own action comes before ``action``.
    """
    return next(iter(told.splitlines()), "").replace(" What to do: ", " Before that: ")


class BadConfiguration(HoldfastError):
    """A declaration, a setting or a right must be corrected first; a restart does not help."""

    exit_code = EXIT_BAD_CONFIGURATION


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
