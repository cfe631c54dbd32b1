"""The change of a processor's workers that is under way, as the operator tells it to workers of this machine.

    <home>/run/<processor>.workers.json

It is a file, because a worker has to read it before it serves requests, and because it must end by itself when the
operator was killed: it names the operator's process, and the times between which it is valid. A clock that was set back
since makes it void: without it, workers join with cold state, and nobody waits.
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
        until: When it becomes void, seconds since 1970.
        join: Whether new workers may join their group now.
        since: When it began, seconds since 1970.
        operator: Text of the identity of the process that makes the change; empty where a former version told it.
    """

    before: tuple[str, ...]
    slots: tuple[str, ...]
    until: float
    join: bool = False
    since: float = 0.0
    operator: str = ""

    def is_valid(self, now: float) -> bool:
        """Whether the change is under way at a time: within its times, and its operator has not ended."""
        operator = ProcessIdentity.parse(self.operator)
        return self.since <= now < self.until and (operator is None or fate_of(operator) != "ended")


def new_change(before: tuple[str, ...], slots: tuple[str, ...], lasts_s: float) -> WorkersChange:
    """A change that this process makes from now on, void after ``lasts_s`` seconds."""
    now = time.time()
    return WorkersChange(before, slots, now + lasts_s, since=now, operator=str(own_identity()))


def read_change(paths: Paths, processor: str) -> WorkersChange | None:
    """The change that is under way; None without one, for one that is void, and for a damaged file."""
    found = read_json(paths.workers_change(processor), WorkersChange)
    return found if found is not None and found.is_valid(time.time()) else None


def record_change(paths: Paths, processor: str, change: WorkersChange) -> None:
    """Tell the workers of a change.

    Raises:
        OSError: The file can't be written.
    """
    paths.run.mkdir(parents=True, exist_ok=True)
    replace_text(paths.workers_change(processor), msgspec.json.encode(change).decode())


def end_change(paths: Paths, processor: str) -> None:
    """The change has ended: workers follow only what they follow always."""
    paths.workers_change(processor).unlink(missing_ok=True)
