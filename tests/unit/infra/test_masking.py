"""Shown texts contain no secret. A secret is recognized by its form, or because a setting contains it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import configure_logging
from holdfast.infra.masking import is_secret_name, masked, masked_data, remember, secrets_of, secrets_of_url, shown_url
from holdfast.infra.settings import SettingsInvalid, load_settings

SECRET = 'p@ss/w0rd: 50%&"x'
TOKEN = "T0000/x0000token"


@pytest.fixture
def reset_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@db/registry is away", "postgresql://***@db/registry is away"),
        ("see https://ghp_hunter2@host/x", "see https://***@host/x"),
        ("redis://:hunter2@h", "redis://***@h"),
        ("http://two.example/a@b", "http://two.example/a@b"),
        ("https://host/x?sig=hunter2&sp=r", "https://host/x?sig=***&sp=r"),
        ("https://host/x?X-Amz-Security-Token=hunter2&a=b", "https://host/x?X-Amz-Security-Token=***&a=b"),
        ("sc://host:15002/;token=hunter2;user_id=me", "sc://host:15002/;token=***;user_id=me"),
        ('Login required username="me" password="hunter2";', 'Login required username="me" password=***;'),
        ("fs.s3a.secret.key=hunter2", "fs.s3a.secret.key=***"),
        ("host=db user=me password = hunter2 port=1", "host=db user=me password = *** port=1"),
        ("ssl.key.location=/etc/key.pem is absent", "ssl.key.location=/etc/key.pem is absent"),
        ("the token is missing; a key=3 is none", "the token is missing; a key=3 is none"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_a_remembered_secret_is_hidden_in_every_form() -> None:
    remember([SECRET])
    for form in (
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        json.dumps(SECRET),
        repr(SECRET),
        repr(SECRET.encode()),
    ):
        assert masked(f"<{form}>").replace('"', "").replace("b'", "").replace("'", "") == "<***>", form


def test_a_common_word_as_a_password_does_not_break_longer_words() -> None:
    remember(["postgres"])
    assert masked("postgresql: user postgres") == "postgresql: user ***"


def test_short_values_are_not_remembered() -> None:
    remember(["abc"])
    assert masked("abc") == "abc"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql+psycopg://me:hunter2@db:5432/r?sslpassword=x&y",
            "postgresql+psycopg://me:***@db:5432/r?sslpassword=***&***",
        ),
        ("postgresql://me:hun/ter2@db/r", "postgresql://me:***@db/r"),
        ("s3://bucket/prefix@2", "s3://bucket/prefix@2"),
        ("sqlite:////srv/registry.db", "sqlite:////srv/registry.db"),
        ("/a/folder", "/a/folder"),
    ],
)
def test_an_address_is_shown_without_password_and_query(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_secrets_of_settings_are_found_by_their_names() -> None:
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "hunter2",
        "ssl.key.location": "/key.pem",
        "sasl.jaas.config": 'PlainLoginModule required username="me" password="inside";',
    }
    assert {"hunter2", "inside"} <= set(secrets_of(client))
    assert not {"SASL_SSL", "/key.pem"} & set(secrets_of(client))
    nested = {"key": "k1", "client_kwargs": {"endpoint_url": "http://u:pw@s3:9000", "aws_secret_access_key": "s1"}}
    assert set(secrets_of(nested)) == {"k1", "pw", "s1"}
    assert list(secrets_of_url("https://chat.example/services/hook/AbC123", whole=True)) == [
        "https://chat.example/services/hook/AbC123",
        "services/hook/AbC123",
        "AbC123",
    ]
    assert list(secrets_of_url("db://u:a%40b@h/x?token=t1&sslmode=require")) == ["a%40b", "a@b", "t1"]
    assert is_secret_name("s3.access-key-id")
    assert not is_secret_name("security.protocol")


VARIABLES = {
    "HOLDFAST_KAFKA__CLIENT_CONFIG": '{"security.protocol": "SASL_SSL", "sasl.password": "kafka-hunter2"}',
    "HOLDFAST_REGISTRY_URL": "postgresql+psycopg://me:registry-hunter2@db/r?sslpassword=query-hunter2",
    "HOLDFAST_WAREHOUSE__CATALOG_PASSWORD": "catalog-hunter2",
    "HOLDFAST_WAREHOUSE__S3_ACCESS_KEY": "access-hunter2",
    "HOLDFAST_WAREHOUSE__S3_SECRET_KEY": "s3-hunter2",
    "HOLDFAST_WAREHOUSE__OPTIONS": '{"s3.session-token": "session-hunter2"}',
    "HOLDFAST_CHECKPOINTS__URL": "ftp://me:ftp-hunter2@host/x",
    "HOLDFAST_CHECKPOINTS__OPTIONS": '{"secret": "options-hunter2"}',
    "HOLDFAST_SPARK__CONF": '{"spark.hadoop.fs.s3a.secret.key": "spark-hunter2", "spark.executor.memory": "2g"}',
    "HOLDFAST_SPARK__TOKEN": "token-hunter2-of-spark",
    "HOLDFAST_SERVING__TOKEN": "token-hunter2-of-workers",
    "HOLDFAST_WEBHOOK__URL": "https://chat.example/services/hook-hunter2?key=Key-hunter2",
    "DAGSTER_POSTGRES_PASSWORD": "dagster-hunter2",
}


def test_no_sink_shows_a_secret_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reset_logs: None
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    told = repr(settings) + str(settings)
    assert "SASL_SSL" not in told
    assert "holdfast.processors.definitions" in told
    words = " | ".join(VARIABLES.values())
    error = HoldfastError(f"It answered {words}.", action=f"Read {words}.", answer=words, parts=[words])
    told += f"{error!s} {error!r} {error.message} {error.action} {error.fields} {error.as_dict()}"
    for form in ("text", "json"):
        err = io.StringIO()
        monkeypatch.setattr(sys, "stderr", err)
        configure_logging("INFO", form)
        log = structlog.get_logger("test")
        log.info("it said " + words, answer=words, parts={"one": [words]})
        try:
            raise ValueError(words)
        except ValueError:
            log.exception("broke")
        told += err.getvalue()
        assert "ValueError" in err.getvalue()
    secrets = {part for value in VARIABLES.values() for part in value.replace('"', " ").split() if "hunter2" in part}
    assert len(secrets) >= len(VARIABLES)
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_WAREHOUSE__CATALOG_URL", "postgresql://db/warehouse?password=hunter2"),
        ("HOLDFAST_WAREHOUSE__CATALOG_URL", "postgresql://db/warehouse?sslmode=require&sslpassword=hunter2"),
        ("HOLDFAST_WAREHOUSE__S3_ENDPOINT", "http://me:hunter2@s3:9000"),
        ("HOLDFAST_WAREHOUSE__S3_ENDPOINT", "http://s3:9000?token=hunter2"),
        ("HOLDFAST_WAREHOUSE__URL", "s3://me:hunter2@bucket/prefix"),
        ("HOLDFAST_WEBHOOK__DAGSTER_URL", "https://me:hunter2@dagster.example"),
        ("HOLDFAST_WEBHOOK__DAGSTER_URL", "https://dagster.example?token=hunter2"),
        ("HOLDFAST_SPARK__MASTER", "sc://host:15002/;token=hunter2"),
        ("HOLDFAST_STUCK_AFTER_S", "https://me:hunter2@host"),
    ],
)
def test_an_address_that_is_shown_may_hold_no_secret(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid, match=variable) as refused:
        load_settings()
    assert "hunter2" not in f"{refused.value} {refused.value.as_dict()}"


def test_data_keeps_its_form() -> None:
    data = {"n": 1, "token": "hunter2", "list": ["a=b", ("password=hunter2", None)], "none": None}
    assert masked_data(data) == {"n": 1, "token": "***", "list": ["a=b", ("password=***", None)], "none": None}
