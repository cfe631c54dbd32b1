"""A later version of a processor declares the windows of a store differently. A window that is closed stays closed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.windows.stored import StoredWindows
from tests.window_apps import T, build, send
from tests.window_lives import carry_out

DAY = 86_400_000


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster) -> list[tuple[int, int, Any]]:
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    return [(each["start"] - T, each["end"] - T, each["value"]) for each in made]


def of(kind: str, closing: str, grace: int, retention: int = DAY, *, final: bool = True) -> Application:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        if kind == "sessions":
            window = frame.session_window(10, grace, "w", retention=retention).count()
        elif kind == "sliding":
            window = frame.sliding_window(10, grace, "w").count()
        else:
            window = frame.tumbling_window(10, grace, "w", retention=retention).count()
        made: StreamingDataFrame = window.final(closing) if final else window.current(closing)
        return made

    return build(place)


WAYS = [("tumbling", "key"), ("tumbling", "partition"), ("sessions", "key"), ("sessions", "partition")]


@pytest.mark.parametrize(("kind", "closing"), [*WAYS, ("sliding", "key")])
@pytest.mark.parametrize("final", [True, False], ids=["final", "current"])
def test_a_longer_grace_opens_no_closed_window_again(
    cluster: InMemoryCluster, kind: str, closing: str, final: bool
) -> None:
    for at in (3, 30):
        send(cluster, at)
    cluster.run(of(kind, closing, 0, final=final))
    before = results(cluster)
    send(cluster, 4)  # this message is late for the closed window, but within the new grace
    cluster.run(of(kind, closing, 1_000, final=final))
    assert results(cluster) == before
    send(cluster, 3_000)  # this message closes the open windows
    cluster.run(of(kind, closing, 1_000, final=final))
    assert {start: value for start, _, value in results(cluster)}[before[0][0]] == 1


@pytest.mark.parametrize("closing", ["key", "partition"])
def test_a_longer_retention_brings_no_window_back(cluster: InMemoryCluster, closing: str) -> None:
    send(cluster, 3)
    send(cluster, 200, key=b"other")
    cluster.run(of("tumbling", closing, 0, 20))
    assert results(cluster) == [(0, 10, 1)]
    send(cluster, 4)
    send(cluster, 15)
    send(cluster, 500)
    cluster.run(of("tumbling", closing, 0, DAY))
    assert [each for each in results(cluster) if each[0] < 200] == [(0, 10, 1)]


@pytest.mark.parametrize("closing", ["key", "partition"])
def test_windows_that_closed_while_each_result_was_sent_are_not_sent_when_final_ones_are(
    cluster: InMemoryCluster, closing: str
) -> None:
    for at in (3, 30):
        send(cluster, at)
    cluster.run(of("tumbling", closing, 0, final=False))
    sent = len(results(cluster))
    send(cluster, 45)
    cluster.run(of("tumbling", closing, 0))
    assert results(cluster)[sent:] == [(30, 40, 1)]


@pytest.mark.parametrize(("was", "now"), [("tumbling", "sliding"), ("sliding", "sessions"), ("sessions", "tumbling")])
def test_another_kind_of_windows_in_a_store_is_refused_and_a_clear_makes_room(
    cluster: InMemoryCluster, was: str, now: str
) -> None:
    send(cluster, 3)
    cluster.run(of(was, "key", 0))
    send(cluster, 3_000)
    with pytest.raises(
        HoldfastError, match=f"The windows of store w are {was[:7]}.*the step makes {now[:7]}"
    ) as raised:
        cluster.run(of(now, "key", 0))
    assert "clear the store" in raised.value.action
    carry_out(cluster, of(was, "key", 0), Clear(store="w", all=True))
    send(cluster, 6_000)
    cluster.run(of(now, "key", 0))
    assert results(cluster)[-1][2] == 1


@pytest.mark.parametrize("plant", [lambda self, record: None], ids=["nothing is compared"])
def test_without_the_check_another_kind_is_not_refused_by_name(
    cluster: InMemoryCluster, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, 3)
    cluster.run(of("tumbling", "key", 0))
    monkeypatch.setattr(StoredWindows, "_check_kept", plant)
    send(cluster, 3_000)
    with pytest.raises(Exception) as raised:
        cluster.run(of("sliding", "key", 0))
    assert "the step makes" not in str(raised.value)


@pytest.mark.parametrize("now", ["count window", "aggregation", "function"])
def test_a_step_of_another_kind_on_a_store_with_windows_is_refused_and_a_clear_makes_room(
    cluster: InMemoryCluster, now: str
) -> None:
    def other(store: str) -> Application:
        def place(frame: StreamingDataFrame) -> StreamingDataFrame:
            if now == "count window":
                return frame.tumbling_count_window(1, store).count().final()
            if now == "aggregation":
                return frame.aggregate(n=Count(), store=store)
            return frame.apply(lambda value, state: state.increment("n"), stateful=True, store=store)

        return build(place)

    send(cluster, 3)
    cluster.run(of("tumbling", "key", 0))
    send(cluster, 4)
    with pytest.raises(HoldfastError, match="store w has windows that close with time") as raised:
        cluster.run(other("w"))
    assert "holdfast apply clear PROCESSOR --store w --all" in raised.value.action
    carry_out(cluster, of("tumbling", "key", 0), Clear(store="w", all=True))
    cluster.run(other("w"))
    assert len(cluster.read("out")) == 1
