"""Unauthorised clients on Spark's ports. Driver and block manager ignore commands without the secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tests.parts.open_ports import listening
from tests.spark.ports import transports


def test_a_driver_obeys_no_stranger(spark: Any) -> None:
    """A driver does not execute a command without the secret.

    With `spark.authenticate` off, the driver would run the command and send its result.
    """
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    said = transports(process.pid)
    assert int(spark.sparkContext.getConf().get("spark.driver.port")) in said
    assert len(said) == 2, f"the driver's port and its blocks': {said}"
    for answer in said.values():
        assert "Expected SaslMessage" in answer, said
    assert set(listening([process.pid]).values()) == {"127.0.0.1"}
    assert spark.range(10).count() == 10


def test_the_command_line_holds_no_secret_and_no_property(spark: Any) -> None:
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert b"--properties-file" in command
    for kind in (b"spark.authenticate.secret", b"spark.hadoop", b"catalog"):
        assert kind not in command
