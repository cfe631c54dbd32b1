"""Distinguishes a worker that was frozen while it took a task from damaged state.

After a freeze, the worker reads data of a later owner: records of its commits, or a repartition topic that it has
purged. The committed offsets, which the worker read before the freeze, are older.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import GroupMember


def check_still_ours(member: GroupMember, committed: Mapping[Partition, int | None]) -> None:
    """Compare the group's offsets with the offsets that were committed when the task was assigned.

    Raises:
        MembershipLost: The offsets moved, so another worker has the partitions.
    """
    now = member.committed(list(committed))
    moved = {f"{place.topic}[{place.number}]": place for place in committed if now[place] != committed[place]}
    if moved:
        raise MembershipLost(
            f"While this worker took {', '.join(moved)}, another worker committed offsets there.",
            action="Nothing to do: nothing is lost, and this worker joins the group again.",
            seen={name: now[place] for name, place in moved.items()},
            expected={name: committed[place] for name, place in moved.items()},
        )
