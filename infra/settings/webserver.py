"""The settings ``HOLDFAST_WEBSERVER__*``: who may use Dagster's UI, and under which names it is known."""

from __future__ import annotations

import ipaddress
import re

from pydantic import Field, field_validator, model_validator

from holdfast.infra.settings.group import PREFIX, Group
from holdfast.infra.settings.serving import is_loopback

#: Names of this machine that a request may always use.
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_PERSON = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_TOKEN = re.compile(r"[!-~]{16,}")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class WebserverSettings(Group):
    """Dagster's webserver behind the checks of ``holdfast webserver``."""

    host: str = Field(default="127.0.0.1", description="Listening address of Dagster's UI.")
    path_prefix: str = Field(
        default="",
        description="Path below which the UI and the docs are served, as /dagster; links to the docs use it.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Further names under which browsers reach the UI: a JSON list of name or name:port.",
    )
    tokens: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Who may use the UI: a JSON object of person or program -> token of 16 visible ASCII characters.",
    )
    proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses or networks of proxies that sign people in: a JSON list, as 10.0.0.7 or 10.0.0.0/28.",
    )
    identity_header: str = Field(
        default="X-Forwarded-User", description="Header in which these proxies name the person of a request."
    )

    @property
    def asks(self) -> bool:
        """Whether each request needs a token, or a proxy that names its person."""
        return bool(self.tokens or self.proxies)

    @field_validator("path_prefix")
    @classmethod
    def _path(cls, value: str) -> str:
        if not _PATH.fullmatch(value):
            raise ValueError(f"{value!r} is no path with a slash in front and none behind, as /dagster")
        return value

    @field_validator("hosts")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(each.lower() for each in value)
        for each in lowered:
            if not _HOST.fullmatch(each):
                raise ValueError(f"{each!r} is no name or name:port, as dagster.example.com")
        return lowered

    @field_validator("tokens")
    @classmethod
    def _usable(cls, value: dict[str, str]) -> dict[str, str]:
        for person, token in value.items():
            if not _PERSON.fullmatch(person):
                raise ValueError("a name of a person has a character other than letters, digits and ._@+-")
            if not _TOKEN.fullmatch(token):
                raise ValueError(f"the token of {person} is not 16 visible ASCII characters or more")
        if len(set(value.values())) < len(value):
            raise ValueError("two persons have the same token")
        return value

    @field_validator("proxies")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ipaddress.ip_network(each)
            except ValueError as wrong:
                raise ValueError(f"{each!r} is no address or network: {wrong}") from wrong
        return value

    @field_validator("identity_header")
    @classmethod
    def _header(cls, value: str) -> str:
        if not _HEADER.fullmatch(value):
            raise ValueError("a header's name has letters, digits and dashes")
        return value

    @model_validator(mode="after")
    def _guarded(self) -> WebserverSettings:
        if not is_loopback(self.host) and not self.asks:
            raise ValueError(
                f"other machines can reach {self.host}, and nobody is asked who they are; set "
                f"{PREFIX}WEBSERVER__TOKENS or {PREFIX}WEBSERVER__PROXIES, or unset {PREFIX}WEBSERVER__HOST to listen "
                "on loopback"
            )
        return self
