"""A staging sink of generated topologies, and the system behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.sinks import SinkBatch, SinkTask, StagedPart, StagingSink


class Lake:
    """The systems outside of one run: what sinks have staged by its name, what readers see, and the calls."""

    def __init__(self) -> None:
        self.staged: dict[str, list[str]] = {}
        self.seen: dict[str, list[str]] = {}
        self.last: dict[str, int] = {}
        #: The numbers that durable calls were asked for, in the order of the calls.
        self.charged: list[int] = []

    def publish(self, sink: str, task: str, parts: Sequence[StagedPart]) -> None:
        """Shows parts that were not shown before."""
        for part in parts:
            if part.sequence > self.last.get(task, 0):
                self.seen.setdefault(sink, []).extend(row for name in part.content for row in self.staged[name])
                self.last[task] = part.sequence


#: The system of the present run; a new one for each run (``trial.py``).
LAKES: list[Lake] = [Lake()]


class Staged(StagingSink):
    """A staging sink that keeps its batches in the lake of the run."""

    def stage(self, batch: SinkBatch) -> str:
        """Keeps a batch where no reader sees it."""
        lake = LAKES[-1]
        name = f"{batch.topic}-{batch.partition}-{len(lake.staged)}"
        lake.staged[name] = [json.dumps(item.value, default=str) for item in batch]
        return name

    def publish(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Shows what is committed."""
        LAKES[-1].publish(self.name, task.label, parts)


def staged(sdf: Any, app: Any, out: str) -> Any:
    """The same stream, whose values go to a staging sink and to a topic. Both must have the same values."""
    sdf.sink(Staged(out))
    sdf.to_topic(app.topic(f"{out}-copy"))
    return sdf
