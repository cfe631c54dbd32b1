"""After a failed check of a new task, finds out whether its state is wrong or whether the process was frozen.

If the process freezes between two requests, another worker may own the task during the freeze. The changelog then has
records of the new owner, which are newer than the committed offsets that this worker has read before.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import GroupMember


def check_still_ours(member: GroupMember, committed: Mapping[Partition, int | None]) -> None:
    """Compare the group's current offsets with ``committed``, which this worker has read before.

    Raises:
        MembershipLost: The offsets moved, so another worker owns the partitions.
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
