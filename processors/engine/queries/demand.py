"""What a query demands of its answer, and where an answer stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.queries.errors import QueryWrong

#: Seconds that a query may wait, if it does not say how long: until the task is as far as the query demands.
WAIT_S, WAIT_MAX_S = 2.0, 30.0
#: Maximum number of a partition, maximum seconds of ``max_age`` and ``stale_ok``, and maximum digits of a whole number.
PARTITION_MAX, SECONDS_MAX, DIGITS_MAX = (1 << 31) - 1, 1e9, 19


@dataclass(frozen=True, slots=True)
class Demand:
    """The demands of a query.

    Attributes:
        after: For each input partition, the smallest next offset that the answer's commit must have. A program that has
            produced a record with offset 41 demands 42, and then reads the effect of its own record.
        max_age_s: Maximum seconds since the worker last knew that its state was the newest; None for no demand.
        stale_ok_s: Seconds by which the answer of a standby may be behind; None demands the task's owner.
        wait_s: Seconds that the query may wait until its demands are met.
    """

    after: Mapping[Partition, int] = field(default_factory=dict)
    max_age_s: float | None = None
    stale_ok_s: float | None = None
    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True)
class Position:
    """Where an answer stands: a commit of one task, and how it was read.

    Attributes:
        inputs: For each input topic, the next offset; the answer contains the effects of all earlier records.
        committed_at: Wall-clock seconds since 1970, just before the commit.
        age_s: Seconds since the reader last knew that no newer commit exists.
        source: ``owner`` or ``standby``.
    """

    partition: int
    inputs: Mapping[str, int]
    committed_at: float
    age_s: float
    source: str
    worker: str

    def as_dict(self) -> dict[str, Any]:
        """Returns the position as JSON data. ``after`` is the text with which a later query demands this position."""
        return {
            "partition": self.partition,
            "inputs": dict(self.inputs),
            "after": ",".join(f"{topic}:{self.partition}:{at}" for topic, at in sorted(self.inputs.items())),
            "committed_at": self.committed_at,
            "age_s": round(self.age_s, 4),
            "source": self.source,
            "worker": self.worker,
        }


def parse_after(texts: Sequence[str]) -> dict[Partition, int]:
    """Parses the parameter ``after``: ``<topic>:<partition>:<next offset>``, several with commas between them.

    Raises:
        QueryWrong: A text has another form.
    """
    found: dict[Partition, int] = {}
    for text in [each for given in texts for each in given.split(",") if each]:
        topic, _, rest = text.partition(":")
        number, _, offset = rest.partition(":")
        if not (topic and _is_whole(number) and _is_whole(offset)):
            raise QueryWrong(
                f"`after` has {text[:100]!r}; expected <topic>:<partition>:<next offset>.",
                action="Send, for example, after=orders:0:42, which is the position behind offset 41.",
                seen=text[:100],
            )
        place = Partition(topic, int(number))
        found[place] = max(int(offset), found.get(place, 0))
    return found


def _is_whole(text: str) -> bool:
    return len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
