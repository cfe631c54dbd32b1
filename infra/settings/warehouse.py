"""The settings ``HOLDFAST_WAREHOUSE__*``: place and catalog of the tables."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from pydantic import Field, field_validator, model_validator

from holdfast.infra.masking import is_secret_name
from holdfast.infra.settings.group import PREFIX, Group, Properties

#: The name of a bucket; a URL with a user or a query has another form.
_BUCKET = r"[A-Za-z0-9._-]+"


class WarehouseSettings(Group):
    """The tables' files and their catalog, for Spark and for readers without a JVM."""

    url: str | None = Field(
        default=None,
        description="Place of the tables: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder in "
        "the home.",
    )
    catalog_url: str | None = Field(
        default=None,
        repr=False,
        description="The Iceberg catalog: postgresql://host:port/database, or sqlite:///file. Unset: SQLite in the "
        "home.",
    )
    catalog_user: str | None = Field(default=None, description="User of a catalog on Postgres.")
    catalog_password: str | None = Field(default=None, repr=False, description="Password of that user.")
    s3_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?\s]+$",
        description="URL of an S3-compatible server, without user and query. Unset: Amazon S3.",
    )
    s3_region: str | None = Field(default=None, description="Region of the bucket. Unset: the AWS SDK finds it.")
    s3_access_key: str | None = Field(
        default=None, repr=False, description="Access key for the bucket. Unset: the AWS SDK finds it."
    )
    s3_secret_key: str | None = Field(default=None, repr=False, description="Secret of the access key.")
    options: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of the Iceberg catalog and its file access, such as s3.session-token.",
    )

    @property
    def on_s3(self) -> bool:
        """Whether the tables' files are in S3."""
        return (self.url or "").startswith("s3://")

    @field_validator("url")
    @classmethod
    def _known_storage(cls, value: str | None) -> str | None:
        named = re.match(r"([A-Za-z][A-Za-z0-9+]+):(/*)([^/]*)", value or "")
        if (
            named
            and named[1] != "file"
            and not (named[1] == "s3" and named[2] == "//" and re.fullmatch(_BUCKET, named[3]))
        ):
            raise ValueError("expected a folder, or s3://bucket/prefix")
        return value

    @field_validator("catalog_url")
    @classmethod
    def _known_catalog(cls, value: str | None) -> str | None:
        if not value:
            return value
        if re.match(r"postgresql://[^/@]*@", value):
            raise ValueError(f"set user and password in {PREFIX}WAREHOUSE__CATALOG_USER and __CATALOG_PASSWORD instead")
        if any(
            is_secret_name(name) or name in ("user", "sslpassword") for name, _ in parse_qsl(value.partition("?")[2])
        ):
            raise ValueError(
                f"the URL is shown; set user and password in {PREFIX}WAREHOUSE__CATALOG_USER and "
                f"__CATALOG_PASSWORD, and other secrets in {PREFIX}WAREHOUSE__OPTIONS"
            )
        if not re.match(r"postgresql://[^/@]+/[^/]+$|sqlite:///.+", value):
            raise ValueError("expected postgresql://host:port/database, or sqlite:///file")
        return value

    @model_validator(mode="after")
    def _whole(self) -> WarehouseSettings:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError(f"{PREFIX}WAREHOUSE__S3_ACCESS_KEY and __S3_SECRET_KEY must be set together")
        return self
