"""The settings ``HOLDFAST_WEBHOOK__*``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from holdfast.infra.masking import secrets_of_url
from holdfast.infra.settings.group import Group


class WebhookSettings(Group):
    """Where incidents and failed runs are reported (docs/operations.md)."""

    url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://(\[[0-9A-Fa-f:]+\]|[\w.-]+)(:\d+)?([/?][!-~]*)?$",
        description="Webhook for incidents and failed runs. Unset: no messages.",
    )
    kind: Literal["generic", "slack"] = Field(
        default="generic", description="Format of messages: generic (one JSON document each) or slack."
    )
    repeat_hours: float = Field(
        default=24.0, gt=0, description="Hours after which a state that needs a person is posted again while it lasts."
    )
    dagster_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?\s]+$",
        description="URL of Dagster's UI for readers of messages. Unset: the UI of this machine, while it runs.",
    )

    def secrets(self) -> Iterator[str]:
        """The URL with each part of its path and query: chats put their token there."""
        return secrets_of_url(self.url or "", whole=True)
