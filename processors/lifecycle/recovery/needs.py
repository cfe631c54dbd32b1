"""A state that needs a person, and since when: what the sensor of the webhook remembers of it."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Need(msgspec.Struct, frozen=True):
    """A state that needs a person: its subject is a processor or a part of the installation."""

    subject: str
    kind: str
    title: str
    text: str
    action: str
    #: None for a part of the installation.
    processor: str | None = None


class SeenNeed(msgspec.Struct, frozen=True):
    """A state since it was first seen; ``ended`` is None while it lasts."""

    need: Need
    since: datetime
    ended: datetime | None = None

    @property
    def identity(self) -> str:
        """The begin of the ids of its messages."""
        return f"state-{self.need.subject}-{self.need.kind}-{self.since:%Y%m%dT%H%M%S}"
