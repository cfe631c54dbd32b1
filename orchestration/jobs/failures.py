"""How a run fails on a HoldfastError (message, action and fields), and how to read the error of a failed step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import dagster as dg

from holdfast.infra.errors import HoldfastError


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn a ``HoldfastError`` into a failed run that Dagster does not retry.

    Raises:
        dagster.Failure: The error's message and action as the description, its fields as metadata.
    """
    try:
        yield
    except HoldfastError as failed:
        fields = {name: str(value) for name, value in failed.fields.items()}
        raise dg.Failure(description=str(failed), metadata=fields, allow_retries=False) from None


class StepError(Protocol):
    """An error as Dagster records it with a failed step."""

    @property
    def message(self) -> str:
        """Its class and text."""

    @property
    def cls_name(self) -> str | None:
        """Its class, without a module."""

    @property
    def cause(self) -> "StepError | None":
        """The error that caused this one."""


def own_words(error: StepError | None) -> str | None:
    """The message of a step's error without Dagster's wrappings; None without an error.

    The outermost error that is not Dagster's: Holdfast's errors name the action; the client error that caused them does
    not.
    """
    while error is not None and error.cause is not None and (error.cls_name or "").startswith("Dagster"):
        error = error.cause
    return None if error is None else error.message.strip()
