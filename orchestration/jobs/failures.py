"""How a run fails on an error of Holdfast: with the message, the action and the fields, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

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
