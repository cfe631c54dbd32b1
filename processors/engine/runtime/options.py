"""How one worker runs: the values that ``Application`` was given, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.kafka.producer import BATCH_BYTES_MAX
from holdfast.processors.engine.runtime.pace import Bounds

#: Uncommitted writes above this commit early, in bytes.
OVERLAY_BYTES_MAX = 64 << 20
#: Committed values that are kept at hand take no more than this, in bytes.
STATE_CACHE_BYTES = 256 << 20
#: Records asked for in one poll. With 500, a worker did 128,000 and 158,000 messages a second, with 2,000 147,000 and
#: 178,000, in turns.
RECORDS_PER_POLL = 2_000
#: The commit trigger is looked at after so many records, and sooner where functions take long. Larger slices fall out
#: of the caches of the processor: five times as many cost each message a tenth more.
RECORDS_PER_SLICE = 500


@dataclass(frozen=True, slots=True)
class Start:
    """How a worker begins, other than usual.

    Attributes:
        paused: It reads nothing before it is told to resume.
        from_changelog: It restores without checkpoints.
        shadow: It builds a store anew beside the processor: it sends no outputs, takes no checkpoints, and reads its
            inputs only as far as it is told to.
        reseed: Stores whose changelogs are made anew from local state, where they don't belong to it.
        begin_empty: New stores: where the changelog was never written, they begin empty at the committed offsets.
    """

    paused: bool = False
    from_changelog: bool = False
    shadow: bool = False
    reseed: frozenset[str] = frozenset()
    begin_empty: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Times are seconds. ``commit_every`` 0 means: by time only."""

    group: str
    exactly_once: bool
    offset_reset: str
    commits: Bounds
    commit_every: int
    broker_timeout_s: float
    #: How many other processes follow each task's changelogs.
    standby_replicas: int = 0
    #: By topic that is written to, the most bytes that key, value and headers of a record may have together.
    record_bytes_max: Mapping[str, int] = field(default_factory=dict)
    #: What every one of these topics takes in one batch.
    batch_bytes_max: int = BATCH_BYTES_MAX
    #: Uncommitted writes above this commit early, in bytes.
    overlay_bytes_max: int = OVERLAY_BYTES_MAX
    #: What committed values may take in memory, of all tasks together, in bytes.
    state_cache_bytes: int = STATE_CACHE_BYTES
    #: How it begins.
    start: Start = Start()
    #: Where exported state goes; None where it can't be exported.
    exports: Path | None = None
