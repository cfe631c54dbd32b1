"""The configuration properties of the Iceberg catalog, for Spark and for pyiceberg.

Invariants:
    - The properties of Spark and of pyiceberg come from the same settings, so both see the same tables.
    - Secret properties are kept separate, because plain properties may appear on a command line or in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from holdfast.infra.settings import Settings

#: Name of the catalog. All readers must use this name, because it is part of each row in the catalog's database.
CATALOG = "holdfast"
#: Timeout of connections and requests to the catalog and the object store, and of SQLite's locks, seconds.
PATIENCE_S = 20
#: Maximum number of retries of a request to the object store.
S3_RETRIES = 4
#: Region that is used for S3-compatible servers without regions, because the client library requires a region.
ANY_REGION = "us-east-1"


def spark_properties(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Catalog properties for Spark in two mappings: plain and secret; names without ``spark.sql.catalog.<name>.``."""
    warehouse = settings.warehouse
    plain = {
        "type": "jdbc",
        "uri": f"jdbc:{_jdbc_url(settings.catalog)}",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse_location(settings),
        "cache-enabled": "false",
    }
    if settings.catalog.startswith("sqlite:"):
        plain["jdbc.busy_timeout"] = str(PATIENCE_S * 1000)
    else:
        plain |= {"jdbc.connectTimeout": str(PATIENCE_S), "jdbc.socketTimeout": str(PATIENCE_S * 6)}
    if warehouse.on_s3:
        plain |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.retry.num-retries": str(S3_RETRIES)}
        plain |= {"http-client.apache.connection-timeout-ms": str(PATIENCE_S * 1000)}
        plain |= {"http-client.apache.socket-timeout-ms": str(PATIENCE_S * 1000)}
        plain |= _given({"s3.endpoint": warehouse.s3_endpoint, "client.region": _region(settings)})
        if warehouse.s3_endpoint:
            plain["s3.path-style-access"] = "true"
    secret = _given(
        {
            "jdbc.user": warehouse.catalog_user,
            "jdbc.password": warehouse.catalog_password,
            "s3.access-key-id": warehouse.s3_access_key,
            "s3.secret-access-key": warehouse.s3_secret_key,
        }
    )
    return plain, {**secret, **warehouse.options}


def pyiceberg_properties(settings: Settings) -> dict[str, str]:
    """The properties of the catalog for pyiceberg; they include secrets."""
    warehouse = settings.warehouse
    url = _sqlalchemy_url(settings.catalog, warehouse.catalog_user, warehouse.catalog_password)
    properties = {"uri": url, "warehouse": warehouse_location(settings)}
    if warehouse.on_s3:
        properties |= _given(
            {
                "s3.endpoint": warehouse.s3_endpoint,
                "s3.region": _region(settings),
                "s3.access-key-id": warehouse.s3_access_key,
                "s3.secret-access-key": warehouse.s3_secret_key,
                "s3.connect-timeout": str(PATIENCE_S),
                "s3.request-timeout": str(PATIENCE_S),
            }
        )
    return {**properties, **warehouse.options}


def warehouse_location(settings: Settings) -> str:
    """The URL of the folder or bucket with the tables' files."""
    store = settings.warehouse_store
    return store if "://" in store else f"file://{store}"


def _jdbc_url(url: str) -> str:
    return f"sqlite:{url.removeprefix('sqlite:///')}" if url.startswith("sqlite:") else url


def catalog_of_session(properties: Callable[[str], str | None]) -> str:
    """The SQLAlchemy URL of the catalog that a Spark session uses; it may contain a password.

    ``properties`` is a function that returns the session's value of a property, such as
    ``spark.sql.catalog.holdfast.uri``.
    """
    prefix = f"spark.sql.catalog.{CATALOG}."
    url = (properties(f"{prefix}uri") or "").removeprefix("jdbc:")
    if url.startswith("sqlite:"):
        url = f"sqlite:///{url.removeprefix('sqlite:')}"
    return _sqlalchemy_url(url, properties(f"{prefix}jdbc.user"), properties(f"{prefix}jdbc.password"))


def files_of_session(properties: Mapping[str, str]) -> dict[str, str]:
    """pyiceberg's properties (with secrets) to access the files of a Spark session, from the session's properties."""
    prefix = f"spark.sql.catalog.{CATALOG}."
    given = {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}
    region = {"s3.region": given["client.region"]} if "client.region" in given else {}
    patience = {"s3.connect-timeout": str(PATIENCE_S), "s3.request-timeout": str(PATIENCE_S)}
    return {**region, **patience, **given}


def _sqlalchemy_url(url: str, user: str | None, password: str | None) -> str:
    if url.startswith("sqlite:"):
        return f"{url}?timeout={PATIENCE_S}"
    who = "" if user is None else quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    rest = url.removeprefix("postgresql://")
    timeout = f"{'&' if '?' in rest else '?'}connect_timeout={PATIENCE_S}"
    return f"postgresql+psycopg://{who + '@' if who else ''}{rest}{timeout}"


def _region(settings: Settings) -> str | None:
    warehouse = settings.warehouse
    return warehouse.s3_region or (ANY_REGION if warehouse.s3_endpoint else None)


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
