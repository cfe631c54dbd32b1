"""Connectors: the sources and sinks of a processor, the systems that they connect to, and what they report.

Dagster shows each connector as an asset. Its worker counts messages and failures, and publishes them in its status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.masking import masked

#: Maximum characters of a place, of a position and of a failure. A status and an asset's page show them.
PLACE_MAX, POSITION_MAX, FAILURE_MAX = 300, 200, 400
_KIND = re.compile(r"[a-z0-9_-]{1,40}")

Role = Literal["source", "sink"]


class ExternalSystemInvalid(BadConfiguration):
    """``connects_to`` of a source or sink is no ``ExternalSystem``, or an argument of it can't be shown."""


@dataclass(frozen=True, slots=True)
class ExternalSystem:
    """The system that a source reads or a sink writes. Dagster shows it; secrets in ``place`` are masked.

    Args:
        kind: The kind of the system, for example ``sql``: small letters, digits, ``_`` and ``-``. Dagster shows it as
            a tag. Empty means unknown.
        place: Where the system is, for example a URL with the name of the table. Empty means unknown.

    Raises:
        ExternalSystemInvalid: ``kind`` has other characters, or an argument is not a text.
    """

    kind: str = ""
    place: str = ""

    def __post_init__(self) -> None:
        """Masks secrets in the place. Raises ExternalSystemInvalid."""
        if not isinstance(self.kind, str) or (self.kind and _KIND.fullmatch(self.kind) is None):
            raise ExternalSystemInvalid(
                f"`kind` of an ExternalSystem is {repr(self.kind)[:80]}; expected small letters, digits, _ and -.",
                action="Write, for example, `ExternalSystem('sql', 'orders of the shop')`.",
                seen=repr(self.kind)[:80],
            )
        if not isinstance(self.place, str):
            raise ExternalSystemInvalid(
                f"`place` of an ExternalSystem is of type {type(self.place).__name__}; expected a text.",
                action="Write, for example, `ExternalSystem('sql', 'orders of the shop')`.",
                seen=type(self.place).__name__,
            )
        object.__setattr__(self, "place", masked(self.place)[:PLACE_MAX])


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """The description of one source or sink of a processor.

    Attributes:
        name: Its name, unique among the sources, or among the sinks, of the processor.
        role: ``source`` or ``sink``.
        kind: The name of its class.
        system: The system that it connects to.
        topics: The topic that a source feeds; the input topics whose results a sink gets.
    """

    name: str
    role: Role
    kind: str
    system: ExternalSystem
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What a worker knows of a source that it runs. Times are in seconds since 1970.

    Attributes:
        task: The task that owns the source.
        produced: The number of committed messages, since the source's first start.
        last_at: The time of the last unit of messages; None before the first one.
        runs: Whether ``run`` of the source is being called.
        ended: Whether ``run`` has returned, and all its messages are taken.
        waiting: The number of messages that were produced and are not committed.
        reported_at: The time of the last report of the source (``Source.report``); None without a report.
        within_s: The seconds within which the source promised the next report; None without a promise.
        position: Where the source is in its system, as text.
        remaining: What is left to read, as numbers by unit; empty if unknown.
        failures: The number of failed attempts, since ``run`` was called.
        failure: The text of the last failure; empty without one.
        failed_at: The time of the last failure.
    """

    task: str
    produced: int = 0
    last_at: float | None = None
    runs: bool = False
    ended: bool = False
    waiting: int = 0
    reported_at: float | None = None
    within_s: float | None = None
    position: str = ""
    remaining: Mapping[str, int] = field(default_factory=dict)
    failures: int = 0
    failure: str = ""
    failed_at: float | None = None

    @property
    def fails(self) -> bool:
        """Whether the last attempt failed."""
        return self.failed_at is not None and self.failed_at >= (self.reported_at or 0.0)


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """What a worker knows of a sink, since the worker started. Times are in seconds since 1970.

    Attributes:
        stored: The number of stored results. Results that were stored again after an aborted commit count again.
        stored_at: The time of the last stored or published results; None before the first ones.
        refused: The number of results that the system refused for ever.
        refused_at: The time of the last refusal.
        failures: The number of failed attempts to store or publish.
        failed_at: The time of the last failed attempt.
        failure: The text of the last failure or refusal; empty without one.
        fails: Whether the last attempt failed, so that the sink waits for the next one.
        waiting: The number of results that wait for the next commit.
        unpublished: The number of committed parts of a ``StagingSink`` that are not published; None for other sinks.
    """

    stored: int = 0
    stored_at: float | None = None
    refused: int = 0
    refused_at: float | None = None
    failures: int = 0
    failed_at: float | None = None
    failure: str = ""
    fails: bool = False
    waiting: int = 0
    unpublished: int | None = None


def check_system(given: object, of: str) -> ExternalSystem:
    """Returns ``given``, the value of ``connects_to`` of a source or sink. ``of`` names it in the error.

    Raises:
        ExternalSystemInvalid: The value is no ``ExternalSystem``.
    """
    if isinstance(given, ExternalSystem):
        return given
    raise ExternalSystemInvalid(
        f"`connects_to` of {of} returns {type(given).__name__}; expected an ExternalSystem.",
        action="Return, for example, `ExternalSystem('sql', 'orders of the shop')`.",
        seen=type(given).__name__,
    )


def failure_text(error: BaseException | str) -> str:
    """The text of a failure in one line, without secrets."""
    said = error if isinstance(error, str) else getattr(error, "message", "") or f"{type(error).__name__}: {error}"
    return " ".join(masked(str(said)).split())[:FAILURE_MAX]
