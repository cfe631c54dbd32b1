"""The options of one worker: the settings of its ``Application``, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.kafka.producer import BATCH_BYTES_MAX
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.change_of_workers import ChangeSource, no_change
from holdfast.processors.engine.runtime.commit_pace import Bounds
from holdfast.processors.engine.runtime.reading.watermark_writer import Grouping

#: Uncommitted writes above this commit early, in bytes.
OVERLAY_BYTES_MAX = 64 << 20
#: Maximum bytes of committed values cached in memory, over all tasks.
STATE_CACHE_BYTES = 256 << 20
#: Maximum records of one poll. With 500, a worker processed 128,000 and 158,000 messages a second, with 2,000 147,000
#: and 178,000, in alternate runs.
RECORDS_PER_POLL = 2_000
#: Records processed between two checks whether a commit is due; fewer when functions are slow. Larger slices do not fit
#: into the CPU caches: five times as many cost a tenth more per message.
RECORDS_PER_SLICE = 500


@dataclass(frozen=True, slots=True)
class Start:
    """Special starts of a worker; the defaults are a usual start.

    Attributes:
        paused: Read nothing until a resume.
        from_changelog: Restore without checkpoints.
        shadow: Rebuild a store beside the processor: send no outputs, take no checkpoints, and read the inputs only up
            to the bounds of the ``until`` command.
        reseed: Stores whose changelogs are rewritten from local state, if they do not match it.
        begin_empty: New stores, each with the topic id of its changelog. If that changelog was never written, the store
            begins empty at the committed offsets. An empty id matches any changelog; it is only for temporary starts.
        clears: The worker only empties its stores, so state with other keys is no error.
        generation: The generation of the deployment, which meta records name; 0 without a deployment.
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
    """The options of one worker. Times are seconds; ``commit_every`` counts messages, and 0 commits by time only."""

    group: str
    exactly_once: bool
    offset_reset: str
    commits: Bounds
    commit_every: int
    broker_timeout_s: float
    #: How long a task waits for an input that is not read to its end; None waits without limit.
    wait_s: float | None = None
    #: Number of other processes that follow each task's changelogs.
    standby_replicas: int = 0
    #: By topic that is written to, the maximum bytes of a record's key, value and headers together.
    record_bytes_max: Mapping[str, int] = field(default_factory=dict)
    #: The record times that these topics accept.
    record_times: RecordTimes = field(default_factory=RecordTimes)
    #: Maximum bytes of a batch that all of these topics accept.
    batch_bytes_max: int = BATCH_BYTES_MAX
    overlay_bytes_max: int = OVERLAY_BYTES_MAX
    state_cache_bytes: int = STATE_CACHE_BYTES
    #: The processor's repartition topics.
    groupings: Mapping[str, Grouping] = field(default_factory=dict)
    start: Start = Start()
    #: Returns a change of workers in progress.
    change: ChangeSource = no_change
    #: Folder of exported state; None when exports are impossible.
    exports: Path | None = None
