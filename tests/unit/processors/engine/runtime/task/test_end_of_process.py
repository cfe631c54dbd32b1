"""A process ends without error output, even while a call that cannot be cancelled is waiting."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
from datetime import timedelta

from holdfast import Application, InMemoryCluster


async def never(value):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def fails_late(value):
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise ValueError("too late") from None


cluster = InMemoryCluster()
cluster.create_topic("in")
cluster.produce("in", b"1", b"k")
cluster.produce("in", b"2", b"l")
app = Application("in-memory", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel="CRITICAL")
calls = {1: never, 2: fails_late}


async def late(value):
    return await calls[value](value)


app.dataframe(app.topic("in")).apply_async(late, timeout=timedelta(milliseconds=20))
cluster.run(app)
print(len(cluster.read("dead")), "dead letters")
"""


def test_calls_that_are_late_leave_no_noise() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 dead letters\n", "")
