"""The options of one worker, as immutable data. ``Application`` makes them from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.change_of_workers import ChangeSource, no_change
from holdfast.processors.engine.runtime.commit_pace import Bounds
from holdfast.processors.engine.runtime.reading.watermark_writer import Grouping

#: A commit is due at once when the uncommitted writes of all tasks exceed this many bytes.
OVERLAY_BYTES_MAX = 64 << 20
#: Maximum bytes of committed values that are cached in memory, for all tasks together.
STATE_CACHE_BYTES = 256 << 20
#: Maximum records of one poll. Two benchmarks processed 147,000 and 178,000 messages a second with this value, but
#: 128,000 and 158,000 with 500.
RECORDS_PER_POLL = 2_000
#: Maximum records that are processed before the loop checks whether a commit is due; fewer if user functions are slow.
#: With 2,500 records, a message took 10 % longer, because their data no longer fits into the CPU caches.
RECORDS_PER_SLICE = 500


@dataclass(frozen=True, slots=True)
class Start:
    """Options for special starts of a worker. The defaults are for a normal start.

    Attributes:
        paused: Whether the inputs stay paused until the command ``resume``.
        from_changelog: Whether to restore from the changelog only, and ignore checkpoints.
        shadow: Whether the worker only rebuilds a store, while the processor's own workers continue. A shadow sends no
            outputs and takes no checkpoints. It reads the inputs only up to the offsets that the ``until`` command
            gives.
        reseed: Names of stores whose changelogs must match local state. A changelog that differs is written again.
        begin_empty: New stores, each with the topic id of its changelog. If that changelog was never written, the store
            begins empty at the committed offsets. An empty id matches any changelog; only temporary workers get it.
        clears: Whether the worker only empties its stores. The state may then have been written with other keys than
            this version of the processor uses. Without ``clears``, that is an error.
        generation: The number of the deployment in the registry of deployments. It is written into meta records; 0
            without a deployment.
    """

    paused: bool = False
    from_changelog: bool = False
    shadow: bool = False
    reseed: frozenset[str] = frozenset()
    begin_empty: Mapping[str, str] = field(default_factory=dict)
    clears: bool = False
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The options of one worker. Times are seconds.

    ``commit_every`` is the maximum number of messages in a commit; 0 for no limit.
    """

    group: str
    exactly_once: bool
    offset_reset: str
    commits: Bounds
    commit_every: int
    broker_timeout_s: float
    #: Maximum seconds that a task waits for records of an input whose end it has not reached; None waits without limit.
    wait_s: float | None = None
    #: How many other workers keep a copy (standby) of each task's state current.
    standby_replicas: int = 0
    #: Maximum bytes of a record (key, value and headers together), for each topic that the worker writes.
    record_bytes_max: Mapping[str, int] = field(default_factory=dict)
    #: The range of record timestamps that each topic accepts into which the worker writes.
    record_times: RecordTimes = field(default_factory=RecordTimes)
    #: Maximum bytes of a producer's batch. All topics into which the worker writes accept batches of this size.
    batch_bytes_max: int = BATCH_BYTES_MAX
    overlay_bytes_max: int = OVERLAY_BYTES_MAX
    state_cache_bytes: int = STATE_CACHE_BYTES
    #: The processor's repartition topics, by name.
    groupings: Mapping[str, Grouping] = field(default_factory=dict)
    start: Start = Start()
    #: A function that returns the planned change of workers; None if no change is in progress.
    change: ChangeSource = no_change
    #: Folder for files with exported state; None if this worker can't export.
    exports: Path | None = None
