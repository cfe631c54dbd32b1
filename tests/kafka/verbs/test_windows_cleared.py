"""The windows of a running processor are cleared by time, and a whole window store is cleared. Both can be put back."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.orchestration.cli import main
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from holdfast.processors.engine.state.time.window_keys import window_of
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.requests import Clear, Everything, Restore, Stop, Windows
from tests.oracles.fold import fold_changelog
from tests.parts.operated import PARTITIONS, Operated, exported_by, killing_at_stages

#: A multiple of a minute since the epoch, in milliseconds: 2023-07-22T04:26:00Z.
T, MINUTE = 1_690_000_000_000 // 60_000 * 60_000, 60_000
KEYS = 12
DEFINITION = """
from holdfast import Application

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}},
)
frame = application.dataframe(application.topic("{group}-in"))
minutes = frame.tumbling_window(60_000, name="minutes").count().final(closing_strategy="partition")
minutes.to_topic(application.topic("{group}-out"))
"""


def feed(operated: Operated, *minutes: int) -> None:
    """For each of these minutes, send one message of each key."""
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap, "partitioner": "murmur2_random"})
    for minute in minutes:
        for number in range(KEYS):
            at = T + minute * MINUTE + number
            producer.produce(f"{operated.group}-in", b"1", f"key-{number}".encode(), timestamp=at)
    assert producer.flush(30) == 0


def stored(operated: Operated) -> dict[tuple[int, bytes], bytes]:
    """The stored values, by partition and changelog key."""
    changelog, found = f"{operated.group}-minutes-changelog", {}
    for number, end in operated.topics.settled_end_offsets(changelog).items():
        records = read_range(operated.topics.bootstrap, changelog, number, 0, end)
        folded = fold_changelog(records)
        found.update({(number, key): value for key, value in folded.items() if key != META_KEY})
    return found


def minutes_of(state: dict[tuple[int, bytes], bytes]) -> Counter[int]:
    """The number of keys that have a window in each minute."""
    found = (window_of(split_key(key)[1]) for _, key in state)
    return Counter((window[0] - T) // MINUTE for window in found if window is not None)


def sent(operated: Operated) -> Counter[int]:
    found: Counter[int] = Counter()
    for number, end in operated.topics.settled_end_offsets(f"{operated.group}-out").items():
        for record in read_range(operated.topics.bootstrap, f"{operated.group}-out", number, 0, end):
            result = json.loads(record.value or b"")
            found[(result["start"] - T) // MINUTE] += result["value"]
    return found


def file_of(done: object) -> str:
    return str(next(exported_by(note.text) for note in done.notes if note.stage == "clear_keys"))  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_windows_are_cleared_by_time_and_put_back(operated: Operated, capfd: pytest.CaptureFixture[str]) -> None:
    group = operated.group
    module = Path(os.environ["PYTHONPATH"]) / f"definition_{group.replace('-', '_')}.py"
    module.write_text(DEFINITION.format(group=group))
    operated.bring_up()
    feed(operated, 0, 1, 2)
    operated.processed(3 * KEYS)
    operated.wait_for(lambda: sent(operated) == {0: KEYS, 1: KEYS}, "two minutes to be closed")
    operated.wait_for(lambda: minutes_of(stored(operated)) == {0: KEYS, 1: KEYS, 2: KEYS}, "three minutes to be stored")

    # Clear the windows of all keys that overlap this range. The range begins in the second minute and ends in the
    # third.
    request = Clear(group, ("minutes",), Windows(T + 90_000, T + 150_000))
    plan = operated.verbs.plan(request)
    assert plan.keys == KEYS
    assert "the windows from 2023-07-22T04:27:30.000+00:00 up to 2023-07-22T04:28:30.000+00:00" in explain(plan)
    before = stored(operated)
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert minutes_of(stored(operated)) == {0: KEYS}
    struck: set[str] = set()
    plan = operated.verbs.plan(Restore(group, file=file_of(done)))
    operated.do_although_killed(plan, killing_at_stages(struck))
    assert len(struck) > 4, "it was killed at its stages, and continued"
    assert stored(operated) == before
    assert operated.verbs.audit(group, ())[0].differences == ()

    # Clear one window of one key, chosen by a time in the window, by command. This window is still open.
    capfd.readouterr()
    moment = ["--window", "2023-07-22T04:28:10"]
    assert main(["apply", "clear", group, "--store", "minutes", *moment, "--key", "key-3", "--yes"]) == 0
    assert minutes_of(stored(operated)) == {0: KEYS, 1: KEYS, 2: KEYS - 1}
    assert main(["plan", "clear", group, "--window", "yesterday"]) == 64
    assert "`2026-11-25T14:00..2026-11-25T15:00`" in "".join(capfd.readouterr())

    # Clear the whole store of a stopped processor, including its index and its stream time. Then start the processor.
    operated.do(Stop(group))
    before = stored(operated)
    done = operated.do(Clear(group, ("minutes",), Everything()))
    assert stored(operated) == {}
    operated.bring_up()
    operated.do(Restore(group, file=file_of(done)))
    assert stored(operated) == before
    feed(operated, 3, 4)
    expected = {0: KEYS, 1: KEYS, 2: KEYS - 1, 3: KEYS}
    operated.wait_for(lambda: sum(sent(operated).values()) >= sum(expected.values()), "the open windows to be closed")
    assert sent(operated) == expected
    assert len({number for number, _ in before}) == PARTITIONS
