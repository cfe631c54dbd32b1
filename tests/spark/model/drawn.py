"""Hypothesis strategies for modelled stores: values, changes, times and pauses."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.snapshots.plan import Wanted
from tests.spark.model import promised
from tests.spark.model.changelog import HOUR
from tests.spark.model.owner import DELETED

DAY = 24 * HOUR
#: An ordinary event time, and unusual event times: the epoch, before the epoch, nanoseconds, the smallest integer.
USUAL_MS, STRANGE_MS = 1_700_000_000_000, [0, -1, -86_400_000, 1_700_000_000_000_000_000, -(2**63)]
#: Names of JSON fields. The last one is also the name of a fixed column.
NAMES = [
    *("a", "b"),
    "offset" if promised.NAMES_OF_FIXED_COLUMNS else "c",
    *(["A"] if promised.NAMES_THAT_DIFFER_IN_CASE else []),
]

_numbers = st.integers(-3, 3) | st.sampled_from([2**40, 0.5, -1.25])
_leaves = _numbers | st.booleans() | st.none() | st.sampled_from(["", "x", "1", "null", "ä"])
_kinds = _leaves | st.lists(_leaves, max_size=2) | st.dictionaries(st.sampled_from("pq"), _leaves, max_size=2)


def changes(names: Sequence[str] = NAMES) -> st.SearchStrategy[list[tuple[int, object, int]]]:
    """The changes of one transaction: a key's number, its value or ``DELETED``, and the event time."""
    objects = st.dictionaries(st.sampled_from(names), _kinds, min_size=1, max_size=2)
    if not promised.VALUES_OF_ANY_KIND:
        objects = objects.map(lambda drawn: {**drawn, "n": 1})
    values = st.one_of(*[objects] * 5, st.just(DELETED), *([_kinds] if promised.VALUES_OF_ANY_KIND else []))
    times = st.sampled_from([USUAL_MS] * 12 + STRANGE_MS)
    return st.lists(st.tuples(st.integers(0, 4), values, times), min_size=1, max_size=3)


#: Pauses between two actions. Most are within the compaction lag. Some are longer than the lag, the retention of
#: tombstones, or the interval of full snapshots.
pauses = st.sampled_from([1.0] * 3 + [60.0, 0.3 * HOUR, 2 * HOUR, 13 * HOUR, DAY, 4 * DAY])
#: Pauses before maintenance. What maintenance keeps depends on the length of the pause.
ages = st.sampled_from([1.0, 2 * HOUR, 13 * HOUR, DAY, 2 * DAY, 4 * DAY])
#: Pauses between the checkpoints of two partitions.
apart = st.sampled_from([0.0, 0.0, 60.0, 0.3 * HOUR])
wanted = st.sampled_from([Wanted.AUTO] * 4 + [Wanted.CHECKPOINT, Wanted.CHANGELOG])
#: Events that change the changelog without its owner, or that happen to the owner.
EVENTS = ["nothing", "nothing", "clean", "truncate", "rebuild", "clear", "lose files", "abort"]
events = st.sampled_from(EVENTS)
#: Settings of maintenance whose ages lie within the range of the pauses.
keeps = st.builds(
    MaintenanceSettings,
    keep_snapshots=st.sampled_from([1, 1, 2]),
    keep_snapshots_days=st.sampled_from([0.0, 0.0, 2.2]),
    keep_times_days=st.sampled_from([0.0, 1.2, 3.2]),
    keep_versions_hours=st.just(1.0),
    compact_every=st.sampled_from([1, 3, 8]),
    leftovers_hours=st.just(24.0),
)
