"""Groups a table's rows, for the simulation. Each row counts only in the group to which it belongs now.

The stream is first grouped by partition and number. So all messages of a table row come from one input partition, in
order. The newest message is the row, or deletes the row. The message also names the row's group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast import Count, Sum
from holdfast.processors.engine.changelog.names import repartition_topic
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

ROWS, ROW, BY = "rows", "row", "rows-by-group"
TOPICS = (repartition_topic(GROUP, ROW), repartition_topic(GROUP, BY))
#: The number of table rows that the messages of one input partition make.
ROWS_OF_A_PARTITION = 5
#: A message with this amount deletes its row.
DELETES = 9
#: The share of seeds whose processor has these tables.
SHARE = 0.25


def has_tables(seed: int) -> bool:
    """Whether a seed's processor groups table rows.

    This choice uses its own random generator. The other random choices of a seed therefore stay the same, and seeds
    that found a bug still find it.
    """
    return Random(f"24 rows of {seed}").random() < SHARE


def row_key(value: dict[str, Any]) -> str:
    return f"{value['p']}/{value['n'] % ROWS_OF_A_PARTITION}"


def row_of(value: dict[str, Any]) -> dict[str, Any] | None:
    return None if value["v"] == DELETES else {"g": value["g"], "v": value["v"] / 10, "odd": value["n"] % 2}


def is_wanted(row: dict[str, Any]) -> bool:
    return bool(row["v"] != 0.1)


def add_tables(source: Any, output: Any) -> None:
    """Adds a table of ``GroupedMessage``, groups its rows, and sends the groups to the output."""
    table = source.group_by(row_key, ROW).apply(row_of).to_table(ROWS)
    by = table.filter(is_wanted, "wanted-rows").group_by("g").aggregate(n=Count(), total=Sum("v"), name=BY)
    by.map(_marked, "marked-groups").to_stream().apply(_told).to_topic(output)


def _marked(group: dict[str, Any]) -> dict[str, Any]:
    return {"of": ROWS, "group": group}


def _told(group: dict[str, Any] | None) -> dict[str, Any]:
    return group or {"of": ROWS, "group": None}


@dataclass(frozen=True, slots=True)
class TablesCheck:
    """Compares the newest groups in the output with the groups that plain Python computes from the messages."""

    expected: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, messages: Iterable[tuple[int, int, str, int]]) -> TablesCheck:
        """Make the check for messages (partition, number, group, amount) that are in order within each partition."""
        rows: dict[str, Any] = {}
        for partition, number, group, amount in messages:
            value = {"p": partition, "n": number, "g": group, "v": amount}
            rows[row_key(value)] = row_of(value)
        groups: dict[str, dict[str, Any]] = {}
        for row in rows.values():
            if row is not None and is_wanted(row):
                held = groups.setdefault(row["g"], {"n": 0, "tenths": 0})
                held["n"], held["tenths"] = held["n"] + 1, held["tenths"] + round(row["v"] * 10)
        return cls({group: {"n": of["n"], "tenths": of["tenths"]} for group, of in groups.items()})

    def complete(self, newest: dict[str, Any]) -> bool:
        """Whether the newest groups in the output contain all rows."""
        found = {
            group: {"n": of["n"], "tenths": round(of["total"] * 10)} for group, of in newest.items() if of is not None
        }
        return found == self.expected

    def check(self, newest: dict[str, Any]) -> None:
        """Checks that each row counts once, in the group that it belongs to now.

        Raises:
            InvariantBroken: The groups differ from those of the rows.
        """
        if not self.complete(newest):
            raise InvariantBroken("outputs", f"groups of rows are {newest}, the rows give {self.expected}")
