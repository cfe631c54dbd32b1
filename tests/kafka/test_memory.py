"""Workers with a memory limit, and state that is kept in memory only: real processes, measured and killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import MEMORY_BYTES_MIN

MIB = 1 << 20
BOUND = 256 * MIB
#: The memory that allocators may keep in addition to the limit. docs/memory.md has the measurements.
MARGIN = 32 * MIB
MESSAGES, KEYS = 150_000, 120_000
#: Padding of each value, in bytes. With it, a run without a limit would need 1.4 times the limit.
PAD = 1_000

PADDED = """
import os
from holdfast import Application

application = Application(
    os.environ["TEST_BOOTSTRAP"], consumer_group=os.environ["TEST_GROUP"], auto_offset_reset="earliest",
    commit_interval=float(os.environ.get("TEST_INTERVAL", "10")),
    consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700},
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)

def count(value, state):
    total = state.get("n", {"total": 0})["total"] + 1
    state.set("n", {"total": total, "pad": "x" * int(os.environ["TEST_PAD"])})
    return total

frame = application.dataframe(application.topic(application.consumer_group + "-in"))
frame = frame.apply(count, stateful=True, store="counts")
frame.to_topic(application.topic(application.consumer_group + "-out"))
"""


def padded(worker, **environment: str):
    """A worker whose function keeps a large value for each key."""
    made = worker()
    (made.paths.home / "counting_definition.py").write_text(PADDED)
    made.environment |= {"TEST_PAD": str(PAD), **environment}
    return made


def peak_rss(pid: int) -> int:
    """The highest memory usage (RSS) of a process so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def expected(messages: int, keys: int) -> dict[bytes, int]:
    """The expected count of each key."""
    return {b"k%d" % key: len(range(key, messages, keys)) for key in range(keys)}


def totals(stream: Any) -> dict[bytes, int]:
    return {key: value["total"] for key, value in stream.counts().items()}


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_worker_in_little_memory_commits_early_and_loses_nothing(stream, worker, waiting) -> None:
    stream.feed_numbers(MESSAGES, KEYS)
    small = padded(worker, HOLDFAST_MEMORY_MAX_MB=str(BOUND // MIB)).start()
    small.wait_running()

    def done() -> Any:
        status = small.client.status()
        return status if status is not None and status.records["processed"] >= MESSAGES else None

    status = waiting(done, f"{MESSAGES} messages; the log ends: {small.tail()}")
    peak = peak_rss(small.process.pid)
    assert small.terminate() == 0, small.tail()
    print(f"peak {peak / MIB:.0f} MiB, {status.commits['count']} commits")
    # The worker wrote 300 MB with a limit of 5 MB per commit. The commit interval alone would make only a few commits.
    assert status.commits["count"] > 20
    assert peak < BOUND + MARGIN
    assert totals(stream) == expected(MESSAGES, KEYS)
    stream.outputs_are_exact(expected(MESSAGES, KEYS))


@pytest.mark.thorough
def test_a_bound_too_small_to_work_stops_the_worker_at_once(worker) -> None:
    small = padded(worker, HOLDFAST_MEMORY_MAX_MB="100").start()
    assert small.wait() == EXIT_BAD_CONFIGURATION
    assert f"a worker needs at least {MEMORY_BYTES_MIN:,} ({MEMORY_BYTES_MIN // MIB} MiB)" in small.tail()
    assert f"Set `HOLDFAST_MEMORY_MAX_MB` to {MEMORY_BYTES_MIN // MIB} or more" in small.tail()


def test_state_in_memory_alone_is_whole_again_after_a_kill(stream, worker, waiting) -> None:
    """The worker is killed in the middle and after all input: each start restores all state from the changelog."""
    held = padded(worker, TEST_BACKEND="memory", TEST_PAD="10", TEST_INTERVAL="0.2")
    first, keys = 20_000, 500
    stream.feed_numbers(first, keys)
    held.start().wait_running()
    waiting(lambda: _committed(stream) > 0, f"a first commit; the log ends: {held.tail()}")
    held.kill()
    held.start().wait_running()
    waiting(lambda: _committed(stream) == first, f"all to be committed; the log ends: {held.tail()}")
    held.kill()
    stream.feed_numbers(first, keys)
    held.start().wait_running()
    status = held.client.status()
    assert status is not None
    assert sum(task.restored for task in status.tasks) >= keys
    waiting(lambda: _committed(stream) == 2 * first, f"the rest to be committed; the log ends: {held.tail()}")
    assert held.terminate() == 0, held.tail()
    assert totals(stream) == {key: 2 * total for key, total in expected(first, keys).items()}
    stream.outputs_are_exact({key: 2 * total for key, total in expected(first, keys).items()})
    stored = [name for _, _, names in os.walk(held.paths.state) for name in names if name.endswith(".sst")]
    assert stored == []


def _committed(stream: Any) -> int:
    return sum(stream.topics.committed_offsets(stream.group).values())
