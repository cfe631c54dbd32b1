"""Window stores of the former version of Holdfast. One record has all open windows of a key.

The store's index by time has no entries for these windows.
"""

from __future__ import annotations

import json

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, encode_value, event_time_ms, split_key
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.state.time.window_keys import CLOCK, KEY_TIME, OPENS, OWN_KEY, open_window_of
from tests.window_apps import build, send

OPEN, HOUR = 40, 3_600_000


def app_of(kind: str) -> Application:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        if kind == "sessions":
            return frame.session_window(5, HOUR, "w", retention=HOUR).count().final()
        return frame.tumbling_window(10, HOUR, "w", retention=HOUR).count().final()

    return build(place)


def written_by_former(cluster: InMemoryCluster, app: Application) -> None:
    """Rewrite the changelog as the former version of Holdfast wrote it (format 1)."""
    changelog = app.topology().changelog_of("w")
    assert changelog is not None
    content: dict[bytes, bytes] = {}
    for _, record in cluster.read(changelog.name):
        if record.key is not None and record.value is not None and record.key != META_KEY:
            content[record.key] = record.value
    open_windows = sorted(window for key in content if (window := open_window_of(split_key(key)[1])) is not None)
    opened = sorted(
        [about["session"]["start"], int(split_key(key)[1][2:])]
        for key, raw in content.items()
        if split_key(key)[1].startswith("s/") and (about := decode_value(raw))
    )
    for key, raw in content.items():
        message_key, state = split_key(key)
        value = decode_value(raw)
        if state == KEY_TIME:
            value = {"time": value["time"], "open": opened or sorted([*map(list, open_windows), *value["open"]])}
        elif state == CLOCK and message_key == OWN_KEY:
            value = {**{name: made for name, made in value.items() if name not in ("kind", "over")}, "format": 1}
        elif state.startswith("s/"):
            value["session"]["entered"] = None
        former = encode_value(value, event_time_ms(raw))
        gone = state.startswith((OPENS, "due/"))
        cluster.produce(changelog.name, None if gone else former, key)
    meta = [record for _, record in cluster.read(changelog.name) if record.key == META_KEY][-1]
    cluster.produce(changelog.name, meta.value, META_KEY)


@pytest.mark.parametrize("kind", ["tumbling", "sessions"])
def test_a_store_of_the_former_version_is_read_and_each_window_is_sent_once(
    cluster: InMemoryCluster, kind: str
) -> None:
    for at in range(OPEN):
        send(cluster, at * 20)
    cluster.run(app_of(kind))
    written_by_former(cluster, app_of(kind))
    send(cluster, 3)  # the message belongs to the first window, and its key's record is rewritten in the new format
    cluster.run(app_of(kind))
    clock = cluster.state(app_of(kind), "w")[OWN_KEY, CLOCK]
    assert (clock["format"], len(cluster.state(app_of(kind), "w")[b"k", KEY_TIME]["open"])) == (2, 16)
    send(cluster, 2 * HOUR)
    send(cluster, 2 * HOUR + 20)
    cluster.run(app_of(kind))
    sent = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert [each["value"] for each in sent] == [2, *[1] * (OPEN - 1)]
    for at in (9 * HOUR, 9 * HOUR + 20):
        send(cluster, at, key=b"other")
    cluster.run(app_of(kind))
    left = {key for key, _ in cluster.state(app_of(kind), "w") if key != OWN_KEY}
    assert left == {b"other"}


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made
