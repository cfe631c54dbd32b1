"""The settings ``HOLDFAST_SERVING__*``: address and token of the HTTP server."""

from __future__ import annotations

import ipaddress

from pydantic import Field, model_validator

from holdfast.infra.settings.group import PREFIX, Group


class ServingSettings(Group):
    """The HTTP server of each processor."""

    host: str = Field(default="127.0.0.1", description="Listening address of a processor's HTTP server.")
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of that server. 0: any free port; several workers on one machine need 0.",
    )
    token: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{16,}$",
        description="Secret from which each worker derives its token of control: 16 visible ASCII characters or more. "
        "Unset: a random token for each start.",
    )
    read_token: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{16,}$",
        description="Token that only reads the status and the metrics from other machines. Unset: `token` reads them.",
    )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _guarded(self) -> ServingSettings:
        if not self.on_loopback and self.token is None and self.read_token is None:
            raise ValueError(
                f"other machines can reach {self.host}, and no token is set; set {PREFIX}SERVING__TOKEN or "
                f"{PREFIX}SERVING__READ_TOKEN, or unset {PREFIX}SERVING__HOST to listen on loopback"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Names other than ``localhost`` count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
