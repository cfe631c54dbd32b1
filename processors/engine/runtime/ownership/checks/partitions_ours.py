"""Checks whether partitions that the group assigned really are this worker's.

The inputs of a task share stores. If two workers had some of them, each would process a part of a key's messages. A
group member with another subscription or another assignor can cause such an assignment, so a worker checks that it has
partition n of all inputs of task n.

If the process freezes between two requests, another worker may own the task during the freeze. The changelog then has
records of the new owner, which are newer than the committed offsets that this worker has read before. So after a failed
check of a new task, a worker finds out whether the state is wrong or whether the process was frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import GroupMember, TopicView
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.errors import InputsParted
from holdfast.processors.engine.topology import Topology


def check_together(group: str, topology: Topology, tasks: Iterable[Task], topics: TopicView) -> None:
    """Raises an error unless the group assigned all inputs of each task to this worker.

    Raises:
        InputsParted: The group assigned the partition of one of a task's inputs to another member.
    """
    inputs = {sub.name: sub.inputs for sub in topology.subtopologies}
    missing = [(task, name) for task in tasks for name in inputs[task.subtopology] if name not in task.inputs]
    described = topics.describe(sorted({name for _, name in missing})) if missing else {}
    for task, name in missing:  # A topic may have fewer partitions than the task's number. This is no error.
        if name in described and described[name].partitions > task.partition:
            raise _parted(group, task, name)


def _parted(group: str, task: Task, missing: str) -> InputsParted:
    given = " and ".join(f"{topic}[{task.partition}]" for topic in task.inputs)
    return InputsParted(
        f"Group {group} gave this worker {given} without {missing}[{task.partition}]; their streams share a store, "
        "so one worker must read both. Another member of the group has another assignor or reads other topics.",
        action=f"Stop all members of group {group}, then start workers of one version of the processor. Leave "
        "`partition.assignment.strategy` out of `consumer_extra_config`. Nothing was processed.",
        group=group,
        seen=given,
        expected=f"{missing}[{task.partition}]",
    )


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
