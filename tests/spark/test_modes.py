"""The same snapshot code runs in a local JVM, on a standalone cluster and over Spark Connect. Only settings differ."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.spark.failures import SparkUnavailable
from holdfast.infra.spark.server import find_server, running_server, start_server, stop_server
from holdfast.infra.system.process import is_running
from holdfast.infra.warehouse.catalog import read_table
from tests.parts.open_ports import listening
from tests.spark.driver import Driver
from tests.spark.ports import transports
from tests.spark.standalone import Cluster
from tests.spark.tuning import COMPILED_ONCE


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    yield made.start()
    made.stop()


def takes_snapshots(driver, settings, processor, drivers_jvms):
    assert driver.do("write", partition=0, entries=[["a", 1], ["b", 2]])["answer"] is None
    first = driver.do("snapshot", name="first")
    assert first["answer"]["committed"], first
    driver.do("write", partition=1, entries=[["c", {"x": 1}]])
    driver.do("write", partition=0, entries=[["a", None]])
    second = driver.do("snapshot", name="second")
    assert second["answer"]["rows"] == 2, second
    assert driver.do("table", tag=None)["answer"] == {"b": "2", "c": '{"x":1}'}
    assert driver.do("table", tag=f"snap-{first['answer']['id']}")["answer"] == {"a": "1", "b": "2"}
    assert sorted(read_table(settings, processor, "s")["message_key"].to_pylist()) == ["b", "c"]
    workers = driver.do("workers")["answer"]
    assert {home.partition("/holdfast/")[0] for _, home, _ in workers} == {str(Path.cwd())}
    assert {strays for _, _, strays in workers} == {""}, "a module of ours has two names"
    assert len(jvms_of(driver.pid)) == drivers_jvms
    missing = driver.do("table", tag="nothing")["error"]
    assert "nothing" in missing["message"]


def changes_columns(driver):
    """Write values of two types to one field, so that its column is replaced by a column of another type.

    Holdfast replaces the column by a direct update in the Iceberg catalog: there it changes the path of the table's
    metadata file. It must find the catalog that the Spark session uses.
    """
    for value, kind in ((1, "bigint"), ("text", "string")):
        driver.do("write", partition=0, entries=[[str(value), {"n": value}]])
        made = driver.do("inferred")["answer"]
        assert made["kinds"]["n"] == kind, made
    assert (made["rows"], made["source"]) == (2, "incremental")
    assert driver.end() == 0


def jvms_of(pid):
    """The JVMs that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if line.split()[1] == "java"]


def home_of(tmp_path, master, secret=None, **conf):
    spark = {"master": master, "conf": COMPILED_ONCE | conf, "secret": secret}
    settings = load_settings(home=tmp_path / "home", spark=spark)
    variables = {"HOLDFAST_SPARK__MASTER": master, "HOLDFAST_SPARK__CONF": json.dumps(spark["conf"])}
    if secret is not None:
        variables["HOLDFAST_SPARK__SECRET"] = secret
    return settings, {**variables, "HOLDFAST_HOME": str(settings.home)}


@pytest.mark.thorough
def test_on_a_standalone_cluster(cluster, broker, unique, tmp_path):
    settings, environment = home_of(tmp_path, cluster.url, cluster.secret, **{"spark.executor.memory": "512m"})
    processor = unique("cluster")
    driver = Driver(broker, processor, environment, tmp_path / "driver.log")
    takes_snapshots(driver, settings, processor, drivers_jvms=1)
    (jvm,) = (int(line.split()[0]) for line in jvms_of(driver.pid))
    for pid in (jvm, *cluster.executors()):
        said = transports(pid)
        assert said, "a driver and an executor listen"
        assert all("Expected SaslMessage" in answer for answer in said.values()), said
        assert cluster.secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert driver.end() == 0


@pytest.mark.thorough
def test_a_cluster_refuses_a_driver_with_another_secret(cluster, broker, unique, tmp_path):
    _, environment = home_of(tmp_path, cluster.url, "another secret of nobody")
    with pytest.raises(EOFError, match="HOLDFAST_SPARK__SECRET"):
        Driver(broker, unique("stranger"), environment, tmp_path / "driver.log")
    assert cluster.executors() == []


@pytest.fixture
def warm(tmp_path):
    """Settings and environment of a home with a warm Spark server. The test starts the server, the fixture stops it."""
    made = home_of(tmp_path, "warm")
    yield made
    stop_server(made[0])


@pytest.mark.thorough
def test_over_spark_connect_with_no_jvm_here_and_none_left_behind(broker, unique, tmp_path, warm):
    settings, environment = warm
    with pytest.raises(SparkUnavailable, match="no warm Spark runs"):
        running_server(settings)
    with ThreadPoolExecutor() as pool:  # two concurrent commands start only one server
        server, same = pool.map(start_server, [settings, settings])
    assert start_server(settings) == same == server
    assert (settings.paths.spark / "warm.json").stat().st_mode & 0o777 == 0o600
    assert server.token not in Path(f"/proc/{server.pid}/cmdline").read_text()
    assert not list(settings.paths.spark.glob("warm*.properties"))
    said = transports(server.pid)
    assert len(said) == 2, f"its driver's port and its blocks': {said}"
    assert all("Expected SaslMessage" in answer for answer in said.values()), said
    assert set(listening([server.pid]).values()) == {"127.0.0.1"}
    processor = unique("connect")
    driver = Driver(broker, processor, environment, tmp_path / "driver.log")
    takes_snapshots(driver, settings, processor, drivers_jvms=0)
    assert driver.end() == 0
    changes_columns(Driver(broker, unique("connect"), environment, tmp_path / "columns.log"))
    assert is_running(server.pid, server.mark)

    url = {**environment, "HOLDFAST_SPARK__MASTER": server.url, "HOLDFAST_SPARK__TOKEN": server.token}
    again = Driver(broker, processor, url, tmp_path / "again.log")
    assert again.do("table", tag=None)["answer"] == {"b": "2", "c": '{"x":1}'}
    again.do("write", partition=0, entries=[["d", 4]])
    assert stop_server(settings)
    assert find_server(settings) is None
    assert not is_running(server.pid, server.mark)
    gone = again.do("snapshot", name="third")["error"]
    assert gone["type"] == "SparkUnavailable", gone
    again.kill()

    with pytest.raises(EOFError, match="What to do: Check that the Spark of `HOLDFAST_SPARK__MASTER` runs"):
        Driver(broker, processor, url, tmp_path / "away.log")


@pytest.mark.thorough
def test_a_wrong_token_and_none_are_told(tmp_path, broker, unique, warm):
    settings, environment = warm
    wrong = {**environment, "HOLDFAST_SPARK__MASTER": start_server(settings).url}
    for token in ({"HOLDFAST_SPARK__TOKEN": "none of its tokens"}, {}):
        with pytest.raises(EOFError, match="HOLDFAST_SPARK__TOKEN"):
            Driver(broker, unique("token"), {**wrong, **token}, tmp_path / "log")


TWO_SESSIONS = """
import os
from pyspark.sql import functions
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.session import spark_session, stop_spark

one, other = (spark_session(load_settings(), app_name=name) for name in ("one", "other"))
stop_spark(other)
assert [row[0] for row in one.range(2).select(functions.col("id") + 1).collect()] == [1, 2]
stop_spark(one)
assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
"""


@pytest.mark.thorough
def test_a_session_that_ends_leaves_another_of_its_process_alone(warm):
    settings, environment = warm
    start_server(settings)
    variables = {**os.environ, **environment}
    ran = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS], env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
