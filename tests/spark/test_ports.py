"""Unauthorised clients on Spark's ports: driver and block manager ignore commands without the secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tests.parts.open_ports import listening
from tests.spark.ports import transports


def test_a_driver_obeys_no_stranger(spark: Any) -> None:
    """With `spark.authenticate` off, the answers would come from the code that runs the command."""
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    said = transports(process.pid)
    assert int(spark.sparkContext.getConf().get("spark.driver.port")) in said
    assert len(said) == 2, f"the driver's port and its blocks': {said}"
    for answer in said.values():
        assert "Expected SaslMessage" in answer, said
    assert set(listening([process.pid]).values()) == {"127.0.0.1"}
    assert spark.range(10).count() == 10


def test_the_command_line_holds_no_secret(spark: Any) -> None:
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    assert b"spark.authenticate.secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
