"""Global tables on a real broker load completely before the first message.

After that, they follow new rows. They stay complete after kills, with a recreated topic, and with added
partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast import Application
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.runtime.global_tables import GlobalTables
from tests.mechanics.constants import build_of

ROWS = 6_000

DEFINITION = """
import os
from holdfast import Application


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    planes = made.global_table(made.topic(group + "-planes"))
    flights = made.dataframe(made.topic(group + "-in"))
    joined = flights.join_table(planes, "left", lambda flight, row: [flight["number"], row], on="plane")
    joined.to_topic(made.topic(group + "-out"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def write(stream: Any, rows: Iterable[tuple[str, Any]], *, commit: bool = True) -> None:
    """Write rows of the table in one transaction. The transaction's marker also takes an offset."""
    producer = Producer(
        {"bootstrap.servers": stream.bootstrap, "transactional.id": f"{stream.group}-planes", "linger.ms": 5}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for key, row in rows:
        producer.produce(f"{stream.group}-planes", None if row is None else json.dumps(row).encode(), key.encode())
    producer.flush(60)
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def fly(stream: Any, numbers: Iterable[int]) -> None:
    """Feed one flight for each number. The planes of consecutive flights rotate."""
    stream.feed([(b"%d" % each, json.dumps({"number": each, "plane": f"P{each % ROWS}"}).encode()) for each in numbers])


def joined(stream: Any) -> dict[int, list[Any]]:
    """Return the table rows with which each flight was joined, by flight number.

    There is one row if its output was sent once.
    """
    found: dict[int, list[Any]] = {}
    for record in stream.read(stream.sink):
        number, row = json.loads(record.value or b"")
        found.setdefault(number, []).append(row)
    return found


@pytest.mark.thorough
def test_rows_are_whole_at_a_start_and_followed_live(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any]
) -> None:
    planes = TopicSpec(f"{stream.group}-planes", 3, 1, {"cleanup.policy": "compact"})
    stream.topics.create(planes)
    application: Application = build_of(DEFINITION)(stream.bootstrap, stream.group)
    stream.application = lambda: application
    stream.provision()
    write(stream, ((f"P{each}", each) for each in range(ROWS)))
    write(stream, ((f"P{each}", None) for each in range(0, ROWS, 100)))
    write(stream, ((f"P{each}", "aborted") for each in range(ROWS)), commit=False)
    fly(stream, range(ROWS))
    one = worker()
    (one.paths.home / "counting_definition.py").write_text(DEFINITION)
    one.start()
    one.waiting(lambda: len(joined(stream)) == ROWS, "all flights")
    assert joined(stream) == {each: [each if each % 100 else None] for each in range(ROWS)}

    status = one.client.status()
    told = dict(status.global_tables[planes.name])
    assert told.pop("bytes") > 100 * ROWS
    assert told == {"rows": ROWS - ROWS // 100, "loading": False, "remaining": 0, "unreadable": 0}
    assert status.warnings == ()

    write(stream, [("P7", "live")])
    flown = iter(range(ROWS + 7, 1_000 * ROWS, ROWS))  # flight numbers that all belong to plane P7

    def sees(row: Any) -> bool:
        fly(stream, [next(flown)])
        return [row] in joined(stream).values()

    one.waiting(lambda: sees("live"), "the new row")
    one.kill()
    write(stream, [("P7", "written while nobody ran")])
    before = set(joined(stream))
    fly(stream, (last := [next(flown), next(flown)]))
    one.start()
    one.waiting(lambda: joined(stream).keys() >= {*last}, "the flights after the kill")
    after = {number: rows for number, rows in joined(stream).items() if number not in before}
    assert all(rows in (["live"], ["written while nobody ran"]) for rows in after.values())
    assert [after[each] for each in last] == [["written while nobody ran"]] * 2

    stream.topics.delete(planes.name)
    waiting(lambda: planes.name not in stream.topics.describe([planes.name]), "the topic to be gone")
    stream.topics.create(planes)
    write(stream, [("P7", "of the new topic")])
    one.waiting(lambda: sees("of the new topic"), "the row of the topic that was made anew")

    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    for future in admin.create_partitions([NewPartitions(planes.name, 6)]).values():
        future.result(60)
    waiting(lambda: stream.topics.describe([planes.name])[planes.name].partitions == 6, "the new partitions")
    write(stream, ((f"N{each}", each) for each in range(60)))
    one.waiting(lambda: one.client.status().global_tables[planes.name]["rows"] == 61, "rows of the new partitions")
    assert all(len(rows) == 1 for rows in joined(stream).values())
    assert one.terminate() == 0


def test_a_table_that_is_loaded_again_is_served_when_it_is_whole(stream: Any) -> None:
    """A table that is loaded again is used only when it is complete.

    The consumer reached the topic's end in the first load. This must not count as progress of the second load.
    """
    planes = TopicSpec(f"{stream.group}-planes", 1, 1, {"cleanup.policy": "compact"})
    stream.topics.create(planes)
    write(stream, ((f"P{each}", each) for each in range(ROWS)))
    tables = GlobalTables(KafkaCluster(stream.bootstrap))
    app = Application(stream.bootstrap, consumer_group=stream.group, loglevel=None)
    tables.declare({planes.name: app.global_table(app.topic(planes.name))})
    try:
        tables.load(lambda: True)
        for number in range(10):
            tables.compare({planes.name: f"another topic {number}"}, {planes.name: 1})
            tables.follow()
            while tables.told()[planes.name]["loading"]:
                assert tables.told()[planes.name]["rows"] == ROWS, "the former rows are served"
                tables.follow()
            assert tables.told()[planes.name]["rows"] == ROWS
    finally:
        tables.close()
