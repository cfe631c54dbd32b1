"""The file that announces a change of a processor's number of workers (``scale``) to the workers of this machine.

    <home>/run/<processor>.workers.json

The process that carries out the change (the operator) writes the file. A file is used because a starting worker must
read the announcement before it can serve requests. The file names the operator's process and the period of validity.
So the announcement expires if the operator is killed. It is also invalid if the clock is set back. Without a valid
announcement, new workers join their consumer group at once, without prefetched state.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.infra.paths import Paths
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.process import ProcessIdentity, fate_of, own_identity


class WorkersChange(msgspec.Struct, frozen=True):
    """A change of a processor's workers that is in progress.

    Args:
        before: The slots (places of workers) before the change.
        slots: The slots after the change.
        until: Time at which the announcement expires, seconds since 1970.
        join: Whether new workers may join their consumer group now.
        since: Time at which the change began, seconds since 1970.
        operator: Identity, as text, of the process that carries out the change; empty if an older version wrote it.
    """

    before: tuple[str, ...]
    slots: tuple[str, ...]
    until: float
    join: bool = False
    since: float = 0.0
    operator: str = ""

    def is_valid(self, now: float) -> bool:
        """Whether the change is still in progress at the time ``now``: it has not expired, and its operator runs."""
        operator = ProcessIdentity.parse(self.operator)
        return self.since <= now < self.until and (operator is None or fate_of(operator) != "ended")


def new_change(before: tuple[str, ...], slots: tuple[str, ...], lasts_s: float) -> WorkersChange:
    """A change that this process carries out, which begins now and expires after ``lasts_s`` seconds."""
    now = time.time()
    return WorkersChange(before, slots, now + lasts_s, since=now, operator=str(own_identity()))


def read_change(paths: Paths, processor: str) -> WorkersChange | None:
    """The change of the processor's workers that is in progress; None if there is no valid file."""
    found = read_json(paths.workers_change(processor), WorkersChange)
    return found if found is not None and found.is_valid(time.time()) else None


def record_change(paths: Paths, processor: str, change: WorkersChange) -> None:
    """Write the file that announces a change to the workers.

    Raises:
        OSError: The file can't be written.
    """
    paths.run.mkdir(parents=True, exist_ok=True)
    replace_text(paths.workers_change(processor), msgspec.json.encode(change).decode())


def end_change(paths: Paths, processor: str) -> None:
    """Delete the announcement, because the change has ended."""
    paths.workers_change(processor).unlink(missing_ok=True)
