"""The verb ``erase`` on a processor whose store has a table: a snapshot is published, then the table is rewritten."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from holdfast.infra.settings import PROJECT
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.erasing import files_with_key
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.plans.certificates import decode
from holdfast.processors.snapshots.names import history_name, table_name
from tests.parts.operated import Operated

KEY = "key-3"
#: Publishes a snapshot in a process of its own, because the tests of this folder share another Spark session.
PUBLISH = """
import sys
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.session import spark_session, stop_spark
from holdfast.orchestration.erasing import publish
from holdfast.orchestration.verbs import open_verbs
settings = load_settings()
with open_verbs(settings) as verbs:
    spark = spark_session(settings, app_name="a test")
    publish(settings, verbs.registry, verbs._topics, spark, (sys.argv[1], "counts"))
    stop_spark(spark)
"""


@pytest.mark.thorough
def test_an_erasure_publishes_a_snapshot_and_leaves_no_file_with_the_key(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=6, each=5)
    operated.processed(30)
    operated.client.checkpoint()
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"}
    subprocess.run([sys.executable, "-c", PUBLISH, operated.group], cwd=PROJECT, env=environment, check=True)
    place = (operated.group, "counts")
    tables = (table_name(*place), history_name(*place))
    with_key = partial(files_with_key, operated.settings, KeyEntries(KEY), {0: 10**9, 1: 10**9})
    assert all(map(with_key, tables))

    erased = operated.command("erase", operated.group, KEY, "--yes")
    said = erased.communicate(timeout=500)[0].decode()
    assert erased.returncode == 0, said
    certificate = decode(operated.verbs.registry.erasures.of(operated.group)[-1].document)
    assert certificate.proven, certificate
    (proof,) = [each for each in certificate.proofs if each.kind == "table"]
    assert proof.outcome == "gone", proof
    assert not any(map(with_key, tables))
    keys = read_table(operated.settings, operated.group, "counts").column("message_key").to_pylist()
    assert sorted(keys) == [f"key-{number}" for number in range(6) if number != 3]
