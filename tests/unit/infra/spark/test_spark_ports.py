"""The Spark properties that protect Spark's ports depend on the Spark master and on the address of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.infra.settings import Settings, SettingsInvalid, load_settings
from holdfast.infra.spark.configuration import connection_secret, guarded_ports

SECRET = "the secret of the cluster"
KEY = "spark.authenticate.secret"


def settings(**spark: Any) -> Settings:
    return load_settings(spark=spark)


@pytest.mark.parametrize("master", ["local", "local[*]", "yarn", "k8s://https://a:6443", "warm"])
def test_where_spark_draws_a_secret_none_is_given(master: str) -> None:
    assert guarded_ports(settings(master=master)) == {"spark.authenticate": "true"}
    assert connection_secret(settings(master=master)) == {}


def test_a_cluster_of_this_process_gets_a_new_secret_each_time() -> None:
    given = settings(master="local-cluster[2, 1, 512]")
    drawn = {connection_secret(given)[KEY] for _ in range(2)}
    assert len(drawn) == 2
    assert all(len(each) >= 32 for each in drawn)


def test_a_standalone_cluster_has_the_secret_of_the_settings() -> None:
    assert connection_secret(settings(master="spark://a:7077", secret=SECRET)) == {KEY: SECRET}
    assert connection_secret(settings(master="spark://a:7077", conf={KEY: SECRET})) == {KEY: SECRET}


def test_beyond_loopback_connections_are_encrypted() -> None:
    beyond = guarded_ports(settings(driver_host="192.0.2.1"))
    assert beyond == {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


def test_a_standalone_cluster_without_secret_is_refused_and_may_be_switched_off() -> None:
    with pytest.raises(SettingsInvalid, match="HOLDFAST_SPARK__SECRET"):
        settings(master="spark://a:7077")
    off = settings(master="spark://a:7077", conf={"spark.authenticate": False})
    assert guarded_ports(off) == connection_secret(off) == {}


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(settings(master="spark://a:7077", secret=SECRET))
    with pytest.raises(SettingsInvalid) as refused:
        settings(secret="too short")
    assert "too short" not in str(refused.value)
