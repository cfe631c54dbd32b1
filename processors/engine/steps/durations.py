"""Durations that users pass as arguments: whole milliseconds, or a timedelta."""

from __future__ import annotations

from datetime import timedelta

from holdfast.infra.errors import BadConfiguration

#: Maximum duration: a century. A longer duration is a mistake, for example microseconds instead of milliseconds.
LONGEST_MS = 100 * 365 * 86_400_000


class DurationInvalid(BadConfiguration):
    """A duration is neither whole milliseconds nor a timedelta, or it is out of range."""


def milliseconds(name: str, given: int | timedelta, *, least: int) -> int:
    """Converts a duration to milliseconds. ``name`` is the argument's name, used in the error.

    Raises:
        DurationInvalid: The value has another type, is less than ``least`` milliseconds, or is longer than a century.
    """
    if isinstance(given, timedelta):
        made = given // timedelta(milliseconds=1)
        exact = timedelta(milliseconds=made) == given
    else:
        made, exact = given, type(given) is int
    if exact and least <= made <= LONGEST_MS:
        return made
    raise DurationInvalid(
        f"`{name}` is {given!r}, expected whole milliseconds from {least} to {LONGEST_MS}, or a timedelta.",
        action=f"Write, for example, `{name}=60_000` or `{name}=timedelta(minutes=1)`.",
        seen=repr(given),
    )
