"""One set of settings as the properties of both Iceberg catalogs: Spark's, and pyiceberg's.

Invariants:
    - Both are made from the same settings, so both see the same tables.
    - What is secret is told apart from what may be seen on a command line or in a log.
"""

from __future__ import annotations

from urllib.parse import quote

from holdfast.infra.settings import Settings

#: The catalog's name, alike in Spark and in every other reader: the catalog's rows carry it.
CATALOG = "holdfast"
#: How long a catalog or an object store may take to be reached and to answer, and how long a lock on SQLite is
#: waited for, in seconds.
PATIENCE_S = 20
#: Attempts at an object store, before a write has failed.
S3_RETRIES = 4
#: What S3-compatible servers take that have no regions; the client's library wants one.
ANY_REGION = "us-east-1"


def spark_properties(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """The catalog's properties for Spark, without ``spark.sql.catalog.<name>`` before them: the plain, the secret."""
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
    """The catalog's properties for pyiceberg; hold the secrets."""
    warehouse = settings.warehouse
    properties = {"uri": _sqlalchemy_url(settings), "warehouse": warehouse_location(settings)}
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
    """Where the tables' files are, as a URL."""
    store = settings.warehouse_store
    return store if "://" in store else f"file://{store}"


def _jdbc_url(url: str) -> str:
    return f"sqlite:{url.removeprefix('sqlite:///')}" if url.startswith("sqlite:") else url


def _sqlalchemy_url(settings: Settings) -> str:
    url = settings.catalog
    if url.startswith("sqlite:"):
        return f"{url}?timeout={PATIENCE_S}"
    user, password = settings.warehouse.catalog_user, settings.warehouse.catalog_password
    who = "" if user is None else quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    rest = url.removeprefix("postgresql://")
    timeout = f"{'&' if '?' in rest else '?'}connect_timeout={PATIENCE_S}"
    return f"postgresql+psycopg://{who + '@' if who else ''}{rest}{timeout}"


def _region(settings: Settings) -> str | None:
    warehouse = settings.warehouse
    return warehouse.s3_region or (ANY_REGION if warehouse.s3_endpoint else None)


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
