"""Turns a ``HoldfastError`` into a failed Dagster run, and reads the original error of a failed step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import dagster as dg

from holdfast.infra.errors import HoldfastError


@contextmanager
def plain_failures() -> Iterator[None]:
    """Context manager that turns a ``HoldfastError`` into a failed run, which Dagster does not retry.

    Raises:
        dagster.Failure: The error's message and action as the description, its fields as metadata.
    """
    try:
        yield
    except HoldfastError as failed:
        fields = {name: str(value) for name, value in failed.fields.items()}
        raise dg.Failure(description=str(failed), metadata=fields, allow_retries=False) from None


class StepError(Protocol):
    """The error of a failed step, in the form in which Dagster records the error."""

    @property
    def message(self) -> str:
        """The error's class and text, for example ``ValueError: bad key``."""

    @property
    def cls_name(self) -> str | None:
        """The name of the error's class without the module, for example ``ValueError``."""

    @property
    def cause(self) -> "StepError | None":
        """The error that caused this error (``__cause__``); None without a cause."""


def own_words(error: StepError | None) -> str | None:
    """The message of the outermost error whose class is not Dagster's; None without an error.

    Deeper causes are not used, because an error of Holdfast names the action, and the library's error that caused it
    does not.
    """
    while error is not None and error.cause is not None and (error.cls_name or "").startswith("Dagster"):
        error = error.cause
    return None if error is None else error.message.strip()
