"""One set of warehouse settings for both catalogs.

No text shows a secret; an error names a catalog that cannot be used.
"""

import sqlite3
import subprocess
import sys

import pytest

from holdfast.infra.settings import SettingsInvalid, load_settings
from holdfast.infra.spark.configuration import jvm_configuration, secret_configuration, session_configuration
from holdfast.infra.warehouse import catalog as catalogs
from holdfast.infra.warehouse.catalog import open_catalog, prepare_catalog, read_table, register_tables
from holdfast.infra.warehouse.errors import CatalogLost, CatalogUnavailable, CatalogUnusable
from holdfast.infra.warehouse.properties import pyiceberg_properties, spark_properties

SECRETS = {"catalog_password": "pw/of@catalog", "s3_access_key": "the key", "s3_secret_key": "the secret"}
REMOTE = {
    "url": "s3://bucket/prefix/",
    "catalog_url": "postgresql://db:5432/warehouse?sslmode=require",
    "catalog_user": "who@where",
    "s3_endpoint": "http://s3:9000",
    "s3_region": "eu-1",
    **SECRETS,
    "options": {"s3.session-token": "the token"},
}


def test_by_default_catalog_and_tables_are_in_the_home(tmp_path):
    settings = load_settings(home=tmp_path)
    plain, secret = spark_properties(settings)
    assert plain["uri"] == f"jdbc:sqlite:{tmp_path}/warehouse/catalog.db"
    assert plain["warehouse"] == f"file://{tmp_path}/warehouse/data"
    assert "io-impl" not in plain
    assert secret == {}
    theirs = pyiceberg_properties(settings)
    assert theirs["uri"].split("?")[0] == f"sqlite:///{tmp_path}/warehouse/catalog.db"
    assert theirs["warehouse"] == plain["warehouse"]


def test_both_catalogs_are_told_the_same(tmp_path):
    settings = load_settings(home=tmp_path, warehouse=REMOTE)
    plain, secret = spark_properties(settings)
    theirs = pyiceberg_properties(settings)
    assert plain["warehouse"] == theirs["warehouse"] == "s3://bucket/prefix"
    assert plain["uri"] == "jdbc:postgresql://db:5432/warehouse?sslmode=require"
    assert theirs["uri"].startswith(
        "postgresql+psycopg://who%40where:pw%2Fof%40catalog@db:5432/warehouse?sslmode=require&connect_timeout="
    )
    assert plain["s3.endpoint"] == theirs["s3.endpoint"] == "http://s3:9000"
    assert plain["client.region"] == theirs["s3.region"] == "eu-1"
    for name in ("s3.access-key-id", "s3.secret-access-key", "s3.session-token"):
        assert secret[name] == theirs[name]


def test_no_secret_is_on_a_command_line_or_in_what_is_printed(tmp_path):
    settings = load_settings(home=tmp_path, warehouse=REMOTE, spark={"token": "a token of the server"})
    told = repr(settings) + str(jvm_configuration(settings, [], tmp_path)) + str(session_configuration(settings))
    hidden = [*SECRETS.values(), "the token", "a token of the server"]
    assert [value for value in hidden if value in told] == []
    assert sorted(secret_configuration(settings).values()) == sorted([*SECRETS.values(), "the token", "who@where"])


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("WAREHOUSE", "CATALOG_URL", "postgresql://me:hidden@db/warehouse"),
        ("WAREHOUSE", "CATALOG_URL", "mysql://hidden/warehouse"),
        ("WAREHOUSE", "URL", "gs://bucket"),
        ("WAREHOUSE", "URL", "s3:bucket"),
        ("WAREHOUSE", "S3_SECRET_KEY", "hidden"),
        ("SPARK", "MASTER", "sc://host:15002/;token=hidden"),
        ("SPARK", "MASTER", "mesos://host"),
        ("SPARK", "TOKEN", "hidden"),
    ],
)
def test_a_setting_that_can_not_work_is_refused_and_no_secret_is_shown(monkeypatch, group, name, value):
    monkeypatch.setenv(f"HOLDFAST_{group}__{name}", value)
    with pytest.raises(SettingsInvalid, match=f"HOLDFAST_{group}") as refused:
        load_settings()
    assert "hidden" not in str(refused.value)


MASTERS = ["local", "local[*]", "local[4,2]", "local-cluster[2, 1, 512]", "spark://a:7077", "sc://a:1", "warm", "yarn"]


@pytest.mark.parametrize("master", MASTERS)
def test_masters_are_taken(master):
    spark = load_settings(spark={"master": master, "secret": "the cluster's secret"}).spark
    assert spark.over_connect == (master in ("sc://a:1", "warm"))


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("sqlite:////mnt/catalog.db", "sqlite:////mnt/catalog.db"),
        ("sqlite:///kept.db", "sqlite:///{home}/kept.db"),
        ("", "sqlite:///{home}/warehouse/catalog.db"),
    ],
)
def test_a_relative_catalog_is_below_the_home(tmp_path, given, there):
    settings = load_settings(home=tmp_path, warehouse={"catalog_url": given})
    assert settings.catalog == there.format(home=tmp_path)


def test_a_table_is_registered_again_when_its_catalog_is_lost(tmp_path):
    import pyarrow as pa

    settings = load_settings(home=tmp_path)
    rows = pa.table({"n": pa.array([1, 2], pa.int64())})
    catalog = open_catalog(settings)
    catalog.create_namespace("fleet")
    table = catalog.create_table(("fleet", "aircraft"), rows.schema)
    table.append(rows)
    table.append(rows)
    prepare_catalog(settings)
    settings.paths.catalog.unlink()
    with pytest.raises(CatalogLost, match=r"holds 1: fleet\.aircraft") as refused:
        prepare_catalog(settings)
    assert "holdfast warehouse register" in refused.value.action
    assert list(register_tables(settings)) == ["fleet.aircraft"]
    assert register_tables(settings) == {}
    prepare_catalog(settings)
    assert read_table(settings, "fleet", "aircraft").num_rows == 4


def test_a_locked_catalog_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.infra.warehouse.properties.PATIENCE_S", 0.1)
    settings = load_settings(home=tmp_path)
    open_catalog(settings).create_namespace("n")
    holder = sqlite3.connect(settings.paths.catalog, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CatalogUnavailable, match="locked"):
        prepare_catalog(settings)
    holder.execute("COMMIT")
    holder.close()
    prepare_catalog(settings)


def test_a_catalog_of_another_format_is_told_and_left_as_it_is(tmp_path):
    settings = load_settings(home=tmp_path)
    settings.paths.warehouse.mkdir(parents=True)
    settings.paths.catalog.write_bytes(b"this is no database, and it is longer than a page header" * 100)
    before = settings.paths.catalog.read_bytes()
    with pytest.raises(CatalogUnusable, match="not a database"):
        prepare_catalog(settings)
    assert settings.paths.catalog.read_bytes() == before


def test_a_database_of_somebody_else_is_told(tmp_path):
    settings = load_settings(home=tmp_path)
    settings.paths.warehouse.mkdir(parents=True)
    theirs = sqlite3.connect(settings.paths.catalog)
    theirs.execute("CREATE TABLE iceberg_tables (id int, name text)")
    theirs.commit()
    theirs.close()
    with pytest.raises(CatalogUnusable, match="no such column"):
        prepare_catalog(settings)


def test_a_folder_in_place_of_the_catalog_is_told(tmp_path):
    settings = load_settings(home=tmp_path)
    settings.paths.catalog.mkdir(parents=True)
    with pytest.raises(CatalogUnusable, match="unable to open"):
        prepare_catalog(settings)


@pytest.mark.slow
def test_processes_that_make_the_catalog_at_once_all_get_it(tmp_path):
    script = (
        "from holdfast.infra.settings import load_settings; "
        "from holdfast.infra.warehouse.catalog import prepare_catalog;"
        "prepare_catalog(load_settings())"
    )
    environment = {"HOLDFAST_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    racers = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(4)]
    assert [racer.wait(120) for racer in racers] == [0] * 4
    assert catalogs.open_catalog(load_settings(home=tmp_path)).list_namespaces() == []
