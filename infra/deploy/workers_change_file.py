"""The change of a processor's workers in progress, as the operator announces it to workers of this machine.

    <home>/run/<processor>.workers.json

The announcement is a file, because a worker must read it before it serves requests, and because it must expire when the
operator is killed. It names the operator's process and the period in which it is valid. If the clock was set back
meanwhile, the announcement is void: workers then join with cold state, and no process waits.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.infra.paths import Paths
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.process import ProcessIdentity, fate_of, own_identity


class WorkersChange(msgspec.Struct, frozen=True):
    """A change of workers.

    Args:
        before: The slots before the change.
        slots: The slots after it.
        until: When the announcement expires, seconds since 1970.
        join: Whether new workers may join their group now.
        since: When the change began, seconds since 1970.
        operator: Text of the identity of the process that makes the change; empty if an older version wrote it.
    """

    before: tuple[str, ...]
    slots: tuple[str, ...]
    until: float
    join: bool = False
    since: float = 0.0
    operator: str = ""

    def is_valid(self, now: float) -> bool:
        """Whether the change is in progress at a time: within its period, and its operator's process lives."""
        operator = ProcessIdentity.parse(self.operator)
        return self.since <= now < self.until and (operator is None or fate_of(operator) != "ended")


def new_change(before: tuple[str, ...], slots: tuple[str, ...], lasts_s: float) -> WorkersChange:
    """A change by this process, beginning now and void after ``lasts_s`` seconds."""
    now = time.time()
    return WorkersChange(before, slots, now + lasts_s, since=now, operator=str(own_identity()))


def read_change(paths: Paths, processor: str) -> WorkersChange | None:
    """The change in progress; None if there is none, if it expired, or if the file is damaged."""
    found = read_json(paths.workers_change(processor), WorkersChange)
    return found if found is not None and found.is_valid(time.time()) else None


def record_change(paths: Paths, processor: str, change: WorkersChange) -> None:
    """Announce a change to the workers.

    Raises:
        OSError: The file can't be written.
    """
    paths.run.mkdir(parents=True, exist_ok=True)
    replace_text(paths.workers_change(processor), msgspec.json.encode(change).decode())


def end_change(paths: Paths, processor: str) -> None:
    """Record that the change has ended, so that workers follow their usual rules."""
    paths.workers_change(processor).unlink(missing_ok=True)
