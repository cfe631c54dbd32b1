"""Configuration of a schema registry's client, and of serializers that use the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.masking import remember

if TYPE_CHECKING:
    from holdfast.infra.settings.schema_registry import SchemaRegistrySettings

#: Timeout of a request to the schema registry, seconds.
REQUEST_TIMEOUT_S = 10.0
#: Function that returns the subject's name, as in confluent-kafka. Its arguments are the context (topic, field,
#: headers) and the record's name.
SubjectNames = Callable[[Any, str | None], str | None]
STRATEGIES = ("topic", "record", "topic-record")


class SchemaRegistryInvalid(BadConfiguration):
    """An argument for a client of a schema registry, or for a serializer, can't be used."""


@dataclass(frozen=True, slots=True)
class SchemaRegistryClientConfig:
    """The address of a schema registry, and the credentials of its clients.

    Without ``url``, each argument that is left out comes from the settings of the group ``schema_registry``. With
    ``url``, no setting is used, so that no secret in the settings is sent to another host.

    Args:
        url: Base URL, or several separated by commas. ``mock://name`` is a registry in memory, for tests.
        ssl_ca_location: File or folder with the certificates that sign the registry's certificate.
        ssl_key_location: File with the client's key.
        ssl_certificate_location: File with the client's certificate.
        basic_auth_user_info: ``user:password``.
        bearer_auth_token: A token that is sent unchanged with each request.

    Raises:
        SchemaRegistryInvalid: The arguments contradict each other.
    """

    url: str | None = None
    ssl_ca_location: str | None = None
    ssl_key_location: str | None = None
    ssl_certificate_location: str | None = None
    basic_auth_user_info: str | None = field(default=None, repr=False)
    bearer_auth_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            # Users may pass a secret as pydantic's ``SecretStr``, whose method ``get_secret_value`` returns the text.
            value = value.get_secret_value() if hasattr(value, "get_secret_value") else value
            if value is not None and not isinstance(value, str):
                raise SchemaRegistryInvalid(
                    f"`{each.name}` of SchemaRegistryClientConfig is {type(value).__name__}, expected a text.",
                    action="Pass a text, or leave the argument out.",
                )
            object.__setattr__(self, each.name, value)
        user, colon, password = (self.basic_auth_user_info or "").partition(":")
        if self.basic_auth_user_info is not None and not (user and colon):
            raise SchemaRegistryInvalid(
                "`basic_auth_user_info` of SchemaRegistryClientConfig has no colon.",
                action="Write it as `user:password`.",
            )
        if self.basic_auth_user_info is not None and self.bearer_auth_token is not None:
            raise SchemaRegistryInvalid(
                "SchemaRegistryClientConfig has both `basic_auth_user_info` and `bearer_auth_token`.",
                action="Pass the one that the registry asks for.",
            )
        remember(secret for secret in (password, self.bearer_auth_token or "") if secret)

    def properties(self, settings: SchemaRegistrySettings) -> dict[str, Any]:
        """The properties for confluent-kafka's client, which include secrets.

        Raises:
            SchemaRegistryInvalid: Neither this object nor the settings have a URL.
        """
        given = {
            "url": self.url,
            "ssl.ca.location": self.ssl_ca_location,
            "ssl.key.location": self.ssl_key_location,
            "ssl.certificate.location": self.ssl_certificate_location,
            "basic.auth.user.info": self.basic_auth_user_info,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        if self.bearer_auth_token is not None:
            chosen |= _bearer(self.bearer_auth_token)
        if self.url is None:
            chosen = {**_of_settings(settings, signs_in=not _signs_in(chosen)), **chosen}
        if "url" not in chosen:
            raise SchemaRegistryInvalid(
                "A topic needs a schema registry, and no URL is set.",
                action="Set `HOLDFAST_SCHEMA_REGISTRY__URL`, or pass `SchemaRegistryClientConfig(url=...)`.",
            )
        # The library makes no retries, because `PatientRegistry` retries.
        return {"timeout": REQUEST_TIMEOUT_S, "max.retries": 0, **chosen}


def _of_settings(settings: SchemaRegistrySettings, *, signs_in: bool) -> dict[str, Any]:
    found = {
        "url": settings.url,
        "ssl.ca.location": settings.ca_location,
        "ssl.key.location": settings.key_location,
        "ssl.certificate.location": settings.certificate_location,
    }
    chosen: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if signs_in and settings.user is not None:
        chosen["basic.auth.user.info"] = f"{settings.user}:{settings.password or ''}"
    if signs_in and settings.token is not None:
        chosen |= _bearer(settings.token)
    return {**chosen, **settings.options}


def _bearer(token: str) -> dict[str, str]:
    # Only Confluent Cloud has logical clusters; the setting `options` can name a logical cluster.
    return {
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.token": token,
        "bearer.auth.logical.cluster": "",
    }


def _signs_in(chosen: Mapping[str, Any]) -> bool:
    return any(name.startswith(("basic.", "bearer.")) for name in chosen)


@dataclass(frozen=True, slots=True)
class SchemaRegistrySerializationConfig:
    """The options with which a serializer uses its schema registry.

    Args:
        auto_register_schemas: Whether the schema is registered with the first message. If False, the schema must
            already be registered.
        normalize_schemas: Whether the registry converts the schema to its normal form.
        use_latest_version: Whether to write with the newest version of the subject; needs
            ``auto_register_schemas=False``.
        subject_name_strategy: ``topic`` (``orders-value``), ``record`` (``shop.Order``) or ``topic-record``
            (``orders-shop.Order``); or a function as in confluent-kafka.
        skip_known_types: Only for Protobuf: whether the types that Google defines are not registered.
        reference_subject_name_strategy: Only for Protobuf: a function that names the subjects of imported files.
        schema_id: The place of the schema's id: ``prefix`` (before the bytes) or ``header`` (in a header of the
            record).

    Raises:
        SchemaRegistryInvalid: The arguments contradict each other.
    """

    auto_register_schemas: bool = True
    normalize_schemas: bool = False
    use_latest_version: bool = False
    subject_name_strategy: str | SubjectNames = "topic"
    skip_known_types: bool = False
    reference_subject_name_strategy: Callable[[Any, Any], str | None] | None = None
    schema_id: Literal["prefix", "header"] = "prefix"

    def __post_init__(self) -> None:
        if self.use_latest_version and self.auto_register_schemas:
            raise SchemaRegistryInvalid(
                "`use_latest_version=True` writes with a registered schema, and `auto_register_schemas=True` registers "
                "another one.",
                action="Add `auto_register_schemas=False`.",
            )
        if self.schema_id not in ("prefix", "header"):
            raise SchemaRegistryInvalid(
                f"`schema_id` is {self.schema_id!r}, expected 'prefix' or 'header'.", action="Correct the argument."
            )
        if not callable(self.subject_name_strategy) and self.subject_name_strategy not in STRATEGIES:
            raise SchemaRegistryInvalid(
                f"`subject_name_strategy` is {self.subject_name_strategy!r}, expected one of "
                f"{', '.join(map(repr, STRATEGIES))}, or a function.",
                action="Correct the argument.",
            )

    @property
    def text(self) -> str:
        """The arguments as one line of text, which is the same in each process."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return " ".join(f"{name}={_name_of(value)}" for name, value in named.items())


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else str(value)
