"""``ConnectionConfig``: the connection to Kafka as an object, with the names of Quix Streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from holdfast.infra.errors import BadConfiguration

#: Prefixes of the librdkafka settings that belong to a connection, with ``_`` in place of ``.``.
_BEGINNINGS = ("security_protocol", "sasl_", "ssl_", "enable_ssl_", "enable_sasl_", "client_id", "oauth_cb")
#: A setting is secret if its name contains one of these texts.
_SECRET = ("password", "secret", "_pem")
SHOWN = "**********"


class ConnectionInvalid(BadConfiguration):
    """A connection has an unknown setting, or no bootstrap servers."""


class ConnectionConfig:
    """Kafka's bootstrap servers with the security settings of all clients.

    Args:
        bootstrap_servers: The addresses, separated by commas.
        settings: librdkafka's settings for security, with ``_`` in place of ``.``: ``security_protocol``,
            ``sasl_mechanism``, ``sasl_username``, ``sasl_password``, ``ssl_ca_location`` and so on.

    Raises:
        ConnectionInvalid: A setting does not belong to a connection.
    """

    def __init__(self, bootstrap_servers: str, **settings: Any) -> None:
        self.bootstrap_servers = bootstrap_servers
        if "sasl_mechanisms" in settings:
            settings["sasl_mechanism"] = settings.pop("sasl_mechanisms")
        for name in settings:
            if not name.startswith(_BEGINNINGS):
                raise ConnectionInvalid(
                    f"`{name}` is no setting of a connection; expected settings of security and SSL.",
                    action="Pass it to the application: `consumer_extra_config=` or `producer_extra_config=`.",
                    setting=name,
                )
        self._settings = {name: value for name, value in settings.items() if value is not None}

    @classmethod
    def from_librdkafka_dict(cls, config: Mapping[str, Any], ignore_extras: bool = False) -> Self:
        """Returns a connection built from a dict of librdkafka settings.

        Args:
            config: The settings, with ``bootstrap.servers``.
            ignore_extras: Whether settings that do not belong to a connection are left out; otherwise they raise.

        Raises:
            ConnectionInvalid: A setting does not belong to a connection, or ``bootstrap.servers`` is missing.
        """
        named = {name.replace(".", "_"): value for name, value in config.items()}
        servers = named.pop("bootstrap_servers", None)
        if not isinstance(servers, str):
            raise ConnectionInvalid(
                f"`bootstrap.servers` of a connection is {servers!r}, expected addresses.",
                action='Add it: `{"bootstrap.servers": "localhost:9092", ...}`.',
            )
        if ignore_extras:
            named = {name: value for name, value in named.items() if name.startswith(_BEGINNINGS)}
        return cls(servers, **named)

    @property
    def client_config(self) -> dict[str, Any]:
        """The settings with librdkafka's names, without the bootstrap servers."""
        return {name if name == "oauth_cb" else name.replace("_", "."): value for name, value in self._settings.items()}

    def as_librdkafka_dict(self, plaintext_secrets: bool = True) -> dict[str, Any]:
        """All settings with librdkafka's names; ``plaintext_secrets=False`` hides passwords and keys."""
        shown = {
            name: SHOWN if not plaintext_secrets and any(part in name.replace(".", "_") for part in _SECRET) else value
            for name, value in self.client_config.items()
        }
        return {"bootstrap.servers": self.bootstrap_servers, **shown}

    def __repr__(self) -> str:
        return f"ConnectionConfig({self.as_librdkafka_dict(plaintext_secrets=False)})"


def connection_of(given: str | ConnectionConfig | None) -> ConnectionConfig | None:
    """Returns the connection to the given brokers; None means that the settings name the brokers."""
    return given if given is None or isinstance(given, ConnectionConfig) else ConnectionConfig(given)
