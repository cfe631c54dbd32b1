"""Draws a processor's topics and stores as text, beginning with its sources.

reads flights [6 partitions]
  tasks   flights-0 .. 5
  stores  planes (carriers-planes-changelog)
  │ group_by carrier
  ▼
  carriers-carrier-repartition
reads carriers-carrier-repartition [6 partitions] (repartition topic)
  ...
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.topology import CALLS, SCHEDULES, SOURCE, Subtopology, Topology

_NOBODY: Mapping[str, int] = {}


def drawing_of(topology: Topology, partitions: Mapping[str, int] = _NOBODY) -> str:
    """Returns the drawing, with one line for each step. ``partitions`` has the partition counts of known topics."""
    lines: list[str] = []
    for chain in topology.chains():
        for sub in chain:
            lines += _part(topology, sub, partitions)
        lines.append("")
    outputs = [spec.name for spec in topology.outputs]
    if topology.dead_letter is not None:
        outputs.append(f"{topology.dead_letter.name} (dead letters)")
    lines.append(f"writes to {', '.join(outputs) or 'no topic'}")
    return "\n".join(lines)


def _part(topology: Topology, sub: Subtopology, partitions: Mapping[str, int]) -> list[str]:
    inputs = ", ".join(_named(topology, name, partitions) for name in sub.inputs)
    width = sub.width(partitions)
    tasks = f"{sub.name}-0 .. {width - 1}" if width > 1 else f"{sub.name}-0"
    lines = [
        f"reads {inputs}",
        f"  tasks   {tasks if width else 'one for each partition'}",
        f"  stores  {', '.join(_stored(topology, store) for store in sub.stores) or 'none'}",
    ]
    scheduled = [store for store in topology.stores if store.kind == SCHEDULES and store.name in sub.stores]
    lines += [f"  fires   {line.removeprefix('schedule ')}" for store in scheduled for line in store.columns]
    sourced = [store for store in topology.stores if store.kind == SOURCE and store.name in sub.stores]
    lines += [f"  runs    {line} → {store.inputs[0]}" for store in sourced for line in store.columns]
    called = [store for store in topology.stores if store.kind == CALLS and store.name in sub.stores]
    lines += [f"  keeps   {line} ({store.name})" for store in called for line in store.columns]
    for spec in topology.repartitions:
        if set(spec.sources) & set(sub.inputs):
            lines += [f"  │ {spec.step} {spec.name}", "  ▼", f"  {spec.topic}"]
    return lines


def _named(topology: Topology, topic: str, partitions: Mapping[str, int]) -> str:
    count = partitions.get(topic)
    told = "" if count is None else f" [{count} partition{'' if count == 1 else 's'}]"
    return f"{topic}{told}{' (repartition topic)' if topology.is_repartition(topic) else ''}"


def _stored(topology: Topology, store: str) -> str:
    log = topology.source_log_of(store)
    if log is not None:
        return f"{store} (restored from {log.topic})"
    changelog = topology.changelog_of(store)
    return store if changelog is None else f"{store} ({changelog.name})"
