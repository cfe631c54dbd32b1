"""The settings of the schema registry: its address, certificates, and credentials."""

from __future__ import annotations

from pydantic import BaseModel, Field, model_validator

from holdfast.infra.settings.names import PREFIX
from holdfast.infra.settings.secret_fields import Group, Properties


class SchemaRegistrySettings(Group):
    """The settings of the schema registry, which serves topics in the formats Avro, JSON Schema and Protobuf."""

    url: str | None = Field(
        default=None,
        pattern=r"^(https?|mock)://[^@?\s]+$",
        description="Base URL of the schema registry, without user and query; several with commas.",
    )
    user: str | None = Field(default=None, description="User of basic authentication.")
    password: str | None = Field(default=None, repr=False, description="Password of that user.")
    token: str | None = Field(default=None, repr=False, description="Token of bearer authentication.")
    ca_location: str | None = Field(
        default=None,
        description="File or folder of the certificates that sign the registry's certificate. Unset: certifi's.",
    )
    certificate_location: str | None = Field(default=None, description="File of the client's certificate.")
    key_location: str | None = Field(default=None, description="File of the client's key.")
    options: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of confluent-kafka's client, such as proxy or bearer.auth.*.",
    )

    @model_validator(mode="after")
    def _one_way_in(self) -> SchemaRegistrySettings:
        group = f"{PREFIX}SCHEMA_REGISTRY__"
        if self.password is not None and self.user is None:
            raise ValueError(f"{group}PASSWORD is set without {group}USER")
        if self.user is not None and self.token is not None:
            raise ValueError(f"{group}USER and {group}TOKEN are both set; set the one that the registry asks for")
        if self.key_location is not None and self.certificate_location is None:
            raise ValueError(f"{group}KEY_LOCATION is set without {group}CERTIFICATE_LOCATION")
        return self


class FormatSettings(BaseModel):
    """Settings about message formats. ``Settings`` inherits them, because their variables have no common prefix."""

    schema_registry: SchemaRegistrySettings = Field(default_factory=SchemaRegistrySettings)
