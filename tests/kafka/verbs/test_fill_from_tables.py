"""A store for lookups is filled with the rows of a warehouse table.

Each row goes to the partition of its message key.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.changelog.names import filling_topic
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Deploy
from holdfast.processors.lifecycle.plans.stages import LoadTable
from holdfast.processors.lifecycle.rebuild.table_rows import TableUnfit
from tests.colliding import colliding_texts
from tests.parts.operated import Operated, killing_at_stages
from tests.parts.warehouse_tables import write_table

KEYS = 25
LOOKUP = """
def look_up(value, state):
    return {{"plane": state.get("row")}}

frame.apply(look_up, stateful=True, store="planes").to_topic(application.topic("{group}-seen"))
"""


def with_lookup(operated: Operated) -> None:
    """Write the processor's next version, which looks up planes in a new, empty store."""
    operated.bring_up()
    (module,) = (each.target.partition(":")[0] for each in [operated.verbs.definition(operated.group)])
    file = Path(str(sys.modules[module].__file__))
    file.write_text(file.read_text() + LOOKUP.format(group=operated.group))
    importlib.invalidate_caches()
    sys.modules.pop(module)
    operated.bring_up()


def planes(operated: Operated, count: int = KEYS, **changed: Any) -> None:
    columns = {
        "tailnum": [f"key-{number}" for number in range(count)],
        "year": [1990 + number for number in range(count)],
        "model": [f"A{number}" for number in range(count)],
        "speed": [None if number % 2 else 1.5 for number in range(count)],
    }
    write_table(operated.settings.paths, "reference.planes", {**columns, **changed})


def fill(operated: Operated, **asked: Any) -> Backfill:
    return Backfill(operated.group, "planes", "table", table="reference.planes", key="tailnum", **asked)


def feed(operated: Operated, partitioner: str = "murmur2_random") -> None:
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap, "partitioner": partitioner})
    for number in range(KEYS):
        producer.produce(f"{operated.group}-in", b"1", f"key-{number}".encode())
    assert producer.flush(30) == 0


def seen(operated: Operated) -> dict[str, bytes]:
    """The newest lookup result of each key."""
    topic = f"{operated.group}-seen"
    return {
        record.key.decode(): record.value
        for number, end in operated.topics.settled_end_offsets(topic).items()
        for record in read_range(operated.topics.bootstrap, topic, number, 0, end)
        if record.key is not None and record.value is not None
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("partitioner", "named"), [("murmur2_random", MURMUR2), ("consistent_random", CRC32)])
def test_functions_find_the_row_of_each_message_s_key_however_its_writer_spreads_keys(
    operated: Operated, partitioner: str, named: str
) -> None:
    with_lookup(operated)
    feed(operated, partitioner)
    operated.processed(KEYS)
    operated.wait_for(lambda: len(seen(operated)) == KEYS, "all looked up")
    assert set(seen(operated).values()) == {b'{"plane":null}'}
    planes(operated)
    plan = operated.verbs.plan(fill(operated, columns=("year", "speed")))
    assert next(stage for stage in plan.stages if isinstance(stage, LoadTable)).partitioner == named
    assert 'state.get("row")' in operated.verbs.explain(plan)
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert f"{KEYS} entries differed or were missing and are set, 0 extra entries are deleted" in done.text
    feed(operated, partitioner)
    operated.processed(2 * KEYS)
    expected = {
        f"key-{number}": f'{{"plane":{{"year":{1990 + number},"speed":{"null" if number % 2 else 1.5}}}}}'.encode()
        for number in range(KEYS)
    }
    operated.wait_for(lambda: seen(operated) == expected, "every message found its plane")
    assert operated.logged() == {f"key-{number}": 2 for number in range(KEYS)}
    assert filling_topic(operated.group, "planes") not in operated.topics.describe(
        [filling_topic(operated.group, "planes")]
    )


@pytest.mark.thorough
def test_filled_again_it_has_what_the_table_has_now_and_kills_on_the_way_do_no_harm(operated: Operated) -> None:
    with_lookup(operated)
    feed(operated)
    operated.processed(KEYS)
    planes(operated)
    operated.do(fill(operated))
    planes(operated, 20, year=[2000 + number for number in range(20)])
    plan = operated.verbs.plan(fill(operated))
    done = operated.do_although_killed(plan, killing_at_stages(set()))
    assert "20 entries differed or were missing and are set, 5 extra entries are deleted" in done.text
    feed(operated)
    operated.processed(2 * KEYS)
    operated.wait_for(lambda: sum(value == b'{"plane":null}' for value in seen(operated).values()) == 5, "5 are gone")
    assert operated.verbs.audit(operated.group, ())[0].differences == ()


@pytest.mark.thorough
def test_what_can_t_be_a_store_s_content_is_refused_and_changes_nothing(operated: Operated) -> None:
    with_lookup(operated)
    feed(operated)
    operated.processed(KEYS)

    def refusal(**asked: Any) -> Refused:
        named = {"table": "reference.planes", "key": "tailnum", **asked}
        verdict = operated.verbs.plan(Backfill(operated.group, "planes", "table", **named)).verdict
        assert isinstance(verdict, Refused)
        return verdict

    assert "no tables yet" in refusal().sentence
    planes(operated)
    assert "no table reference.trains" in refusal(table="reference.trains").sentence
    assert "Did you mean tailnum?" in refusal(key="tailnumb").action
    assert "message keys are text" in refusal(key="speed").sentence
    assert "has no column 'colour'" in refusal(columns=("colour",)).sentence
    planes(operated, tailnum=["twice"] * KEYS)
    with pytest.raises(TableUnfit, match="two rows with tailnum 'twice'"):
        operated.do(fill(operated))
    # two keys with equal hashes must stay two keys, because the engine compares the keys themselves
    planes(operated, tailnum=[*colliding_texts(), *(f"key-{number}" for number in range(2, KEYS))])
    assert f"{KEYS} entries differed or were missing and are set" in operated.do(fill(operated)).text
    planes(operated, tailnum=[None, *(f"key-{number}" for number in range(1, KEYS))])
    assert "1 rows without tailnum are left out" in operated.do(fill(operated)).text
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap})
    for number in range(KEYS):
        producer.produce(f"{operated.group}-in", b"1", f"key-{number}".encode(), number % 2)
    producer.flush(30)
    assert "lie in other partitions" in refusal().sentence
    operated.do(Deploy(operated.group))
