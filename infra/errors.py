"""The base classes of all errors that Holdfast raises on purpose.

Logs, checks and tests read the fields of an error; none of them parses the error's text.
"""

from __future__ import annotations

from typing import Any

from holdfast.infra.exit_codes import CAUSE_OF_EXIT, EXIT_BAD_CONFIGURATION, EXIT_PROCESSING_FAILED
from holdfast.infra.masking import masked, masked_data


class HoldfastError(Exception):
    """A failure with its facts and the operator's next action; secrets in the texts are masked (``infra.masking``).

    Args:
        message: What happened, with values, and what was expected; one or two sentences.
        action: The one command or edit that repairs the failure, as an imperative sentence.
        cause: The kind of fault. Default: the ``cause`` of the class; if the class has none, the cause of its exit
            code.
        fields: Facts of the failure (topic, partition, path, offset, ...) for logs and tests.
    """

    #: Exit code of a process that ends because of this error; tells the supervisor the kind of failure.
    exit_code: int = EXIT_PROCESSING_FAILED
    #: The kind of fault (``processors.lifecycle.recovery.faults``). Recovery chooses its remedy by this value, so an
    #: existing value must never change.
    cause: str = ""

    def __init__(self, message: str, *, action: str, cause: str = "", **fields: Any) -> None:
        message = masked(message)
        super().__init__(message)
        self.cause = cause or type(self).cause or CAUSE_OF_EXIT.get(self.exit_code, "")
        self.message = message
        self.action = masked(action)
        self.fields = {name: masked_data(value) for name, value in fields.items()}

    def __str__(self) -> str:
        """The message, followed by ``What to do:`` and the action."""
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
    """The first line of a recorded error text. Another error, which has its own action, quotes this line.

    ``What to do:`` becomes ``Before that:``, because the recorded action must be done first.
    """
    return next(iter(told.splitlines()), "").replace(" What to do: ", " Before that: ")


class BadConfiguration(HoldfastError):
    """A declaration, a setting or a right is wrong and must be corrected; a restart does not help."""

    exit_code = EXIT_BAD_CONFIGURATION


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
