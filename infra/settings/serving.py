"""The settings of the workers' HTTP servers, and the question whether an address is reachable from other machines."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from pydantic import Field, model_validator

from holdfast.infra.settings.names import PREFIX
from holdfast.infra.settings.secret_fields import Group

#: Host names of this machine that a request to a worker, or to Dagster's UI, may always use.
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class ServingSettings(Group):
    """The settings of the HTTP server of each worker, which serves the worker's status and metrics."""

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
    state_token: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{16,}$",
        description="Token that reads the state of all stores. Unset: derived from `token`; without `token`, only "
        "programs that can read the worker's endpoint file read state.",
    )
    store_tokens: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description='Tokens that read one store each, as JSON: `{"totals": "…"}`.',
    )
    queries_per_s: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="Queries about state that one worker answers in a second; further ones get status 429.",
    )
    advertised: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.\-\[\]:]+$",
        description="Host, or host and port, under which other workers reach this worker for queries. Unset: `host` "
        "and `port`.",
    )

    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the server's certificate and those between it and the authority. With it, the "
        "server of `host` and `port` speaks only TLS. Commands on this machine use a port of their own on 127.0.0.1.",
    )
    tls_key: Path | None = Field(
        default=None,
        description="PEM file with the private key of `tls_certificate`, without a password. Unset: the key is in the "
        "file of the certificate.",
    )
    tls_authorities: Path | None = Field(
        default=None,
        description="PEM file with the authorities by which a worker trusts the certificates of other workers. Unset: "
        "those of the machine.",
    )

    @property
    def on_loopback(self) -> bool:
        """Whether the server listens on loopback, so that only this machine can reach it."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _guarded(self) -> ServingSettings:
        tokens = self.store_tokens.items()
        if short := next((store for store, token in tokens if not re.fullmatch(r"[!-~]{16,}", token)), None):
            raise ValueError(f"the token of store {short} is not 16 visible ASCII characters or more")
        if self.tls_certificate is None and (self.tls_key or self.tls_authorities):
            one = "TLS_KEY" if self.tls_key else "TLS_AUTHORITIES"
            raise ValueError(
                f"{PREFIX}SERVING__{one} is set without {PREFIX}SERVING__TLS_CERTIFICATE; set that too, or unset {one}"
            )
        if not self.on_loopback and self.token is None and self.read_token is None:
            raise ValueError(
                f"other machines can reach {self.host}, and no token is set; set {PREFIX}SERVING__TOKEN or "
                f"{PREFIX}SERVING__READ_TOKEN, or unset {PREFIX}SERVING__HOST to listen on loopback"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, which only this machine can reach.

    False for every host name except ``localhost``.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
