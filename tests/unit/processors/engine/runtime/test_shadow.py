"""A shadow (a program that rebuilds a store) processes the inputs from their start, up to bounds that it receives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import load_settings
from holdfast.processors.application.application import ApplicationInvalid
from holdfast.processors.engine.changelog.names import SHADOW_NAME_MAX, shadow_group
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import CommandRefused, CommandWrong, Until
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, TicketPhase
from holdfast.processors.engine.runtime.phases import Phase
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.testing import Fate, InlineProcess, InMemoryCluster, Network
from holdfast.sinks import BaseSink

PARTITIONS = 2


def count(value: int, state: Any) -> int:
    if value < 0:
        raise ValueError(f"{value} can't be counted")
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(**options: Any) -> Application:
    options = {"auto_offset_reset": "latest", "loglevel": None, **options}
    app = Application(consumer_group="counting", **options)
    app.dataframe(app.topic("in")).apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    app.dataframe(app.topic("others")).apply(count, stateful=True, store="elsewhere").to_topic(app.topic("out"))
    return app


def feed(cluster: InMemoryCluster, *numbers: int) -> None:
    for number in numbers:
        cluster.produce("in", json.dumps(number).encode(), b"k%d" % (abs(number) % 4), partition=abs(number) % 2)


def counts(cluster: InMemoryCluster) -> dict[str, Any]:
    found = cluster.state(build().shadow("counts"), "counts")
    return {key.decode(): value for (key, _), value in found.items()}


class Asking(InlineProcess):
    """A shadow (a program that rebuilds a store) that gets new end offsets (bounds) while it runs."""

    def __init__(self, cluster: InMemoryCluster, app: Application, bounds: list[Mapping[int, int]]) -> None:
        super().__init__(cluster.clock)
        self.app, self.bounds = app, list(bounds)
        #: Whether an interrupted request is sent again.
        self.again = False
        self.asked: Mapping[int, int] = {}
        self.tickets: list[Ticket] = []
        self.refused: list[HoldfastError] = []

    def point(self, name: str) -> None:
        super().point(name)
        worker = self.app._worker
        if worker is None or worker.phase is not Phase.RUNNING or worker.requests:
            return
        failed = self.again and self.tickets and self.tickets[-1].phase is TicketPhase.FAILED
        if not self.bounds and not failed:
            return
        if not self.tickets or self.tickets[-1].phase in (TicketPhase.DONE, TicketPhase.FAILED):
            if failed:
                self.bounds.insert(0, self.asked)
            worker.requests.append(Request(self._ask, only_reads=False))

    def _ask(self) -> None:
        assert self.app._worker is not None
        try:
            self.asked = self.bounds.pop(0)
            self.tickets.append(self.app._worker.maintenance.begin(Until(positions={"in": dict(self.asked)})))
        except HoldfastError as refused:
            self.refused.append(refused)


def run(
    cluster: InMemoryCluster,
    *bounds: Mapping[int, int],
    app: Application | None = None,
    start: Start | None = None,
    again: bool = False,
) -> Asking:
    app = app or build().shadow("counts")
    app.with_run_overrides(slot="0", auto_create_topics=True, start=start or Start(shadow=True))
    process = Asking(cluster, app, list(bounds))
    process.again = again
    app.run_on(cluster.connect(process), load_settings(home=Path(cluster.home)), timeout=10.0)  # type: ignore[attr-defined]
    process.frozen = True
    process.sleep(10.0)
    return process


@pytest.fixture
def cluster(tmp_path: Path) -> InMemoryCluster:
    made = InMemoryCluster()
    made.home = tmp_path  # type: ignore[attr-defined]
    for topic in ("in", "others"):
        made.create_topic(topic, partitions=PARTITIONS)
    made.create_topic("out", partitions=PARTITIONS)
    return made


def test_what_was_told_is_counted_from_the_beginning_and_nothing_past_it_or_sent(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(40))
    done = run(cluster, {0: 5, 1: 7}, {0: 11, 1: 7}, {0: 11, 1: 12})
    assert [ticket.phase for ticket in done.tickets] == [TicketPhase.DONE] * 3
    assert done.tickets[-1].result == {"positions": {"in": {"0": 11, "1": 12}}}
    assert counts(cluster) == {"k0": 6, "k2": 5, "k1": 6, "k3": 6}
    group = shadow_group("counting", "counts")
    assert cluster.committed_offsets(group) == {Partition("in", 0): 11, Partition("in", 1): 12}
    assert cluster.read("out") == []
    assert cluster.committed_offsets("counting") == {}


def test_nothing_is_read_before_it_is_told_and_after_a_restart(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(8))
    run(cluster)
    assert counts(cluster) == {}
    run(cluster, {0: 2, 1: 1})
    run(cluster)
    assert counts(cluster) == {"k0": 1, "k2": 1, "k1": 1}
    run(cluster, {0: 4, 1: 4})
    assert counts(cluster) == {f"k{key}": 2 for key in range(4)}


def test_markers_and_aborted_records_before_the_bound_are_no_reason_to_wait(cluster: InMemoryCluster) -> None:
    for commit in (True, False):
        foreign = cluster.open_foreign_transaction("in", 0, [(b"k0", b"0"), (b"k2", b"2")])
        (foreign.commit if commit else foreign.abort)()
    ends = {number: cluster.log_end(Partition("in", number)) for number in range(PARTITIONS)}
    feed(cluster, 0, 0, 0)
    done = run(cluster, ends)
    assert done.tickets[-1].phase is TicketPhase.DONE
    assert counts(cluster) == {"k0": 1, "k2": 1}
    assert cluster.committed_offsets(shadow_group("counting", "counts")) == {
        Partition("in", number): end for number, end in ends.items()
    }


def test_another_bound_takes_the_place_of_one_that_is_waited_for(cluster: InMemoryCluster) -> None:
    feed(cluster, 0, 1)
    app = build().shadow("counts")
    process = Asking(cluster, app, [{0: 50}])
    ask = process._ask
    app.with_run_overrides(slot="0", auto_create_topics=True, start=Start(shadow=True))

    def ask_twice() -> None:
        ask()
        process.bounds = [{0: 1}]
        ask()

    process._ask = ask_twice  # type: ignore[method-assign]
    app.run_on(cluster.connect(process), load_settings(home=Path(cluster.home)), timeout=10.0)  # type: ignore[attr-defined]
    first, second = process.tickets
    assert (first.phase, second.phase) == (TicketPhase.FAILED, TicketPhase.DONE)
    assert "a new bound replaced it" in str(first.error)


def test_messages_that_fail_are_left_out_as_the_processor_does_and_no_dead_letter_is_sent(
    cluster: InMemoryCluster,
) -> None:
    feed(cluster, 0, -2, 2)
    app = build(dead_letter_topic="dead").shadow("counts")
    run(cluster, {0: 3}, app=app)
    assert counts(cluster) == {"k0": 1, "k2": 1}
    assert cluster.read("dead") == []


def test_what_was_read_further_and_workers_of_another_kind_are_refused(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(8))
    done = run(cluster, {0: 4}, {0: 3}, {7: 1})
    assert [type(refused) for refused in done.refused] == [CommandWrong, CommandRefused]
    assert "was read up to offset 4 already, past 3" in done.refused[0].message
    ordinary = run(cluster, {0: 4}, app=build(), start=Start())
    assert "rebuilds a store" in ordinary.refused[0].message


class Unreliable(Network):
    """A network that delays or loses requests and answers. So the outcome of transactions is unknown."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(f"shadows of {seed}")

    def fate(self, process: str, request: str) -> Fate:
        if self.random.random() > 0.15:
            return Fate.OK
        return self.random.choice([Fate.LOST, Fate.REPLY_LOST, Fate.DELAYED])


@pytest.mark.parametrize("seed", range(40))
def test_what_gets_no_answer_is_read_again_up_to_the_bound(tmp_path: Path, seed: int) -> None:
    cluster = InMemoryCluster(network=Unreliable(seed))
    cluster.home = tmp_path  # type: ignore[attr-defined]
    for topic in ("in", "others", "out"):
        cluster.create_topic(topic, partitions=PARTITIONS)
    feed(cluster, *range(40))
    bounds = [{0: 3, 1: 9}, {0: 11, 1: 9}, {0: 11, 1: 12}]
    done = run(cluster, *bounds, app=build(commit_every=2).shadow("counts"), again=True)
    assert done.tickets[-1].result == {"positions": {"in": {"0": 11, "1": 12}}}
    assert all("still opening its partitions" in refused.message for refused in done.refused)
    assert counts(cluster) == {"k0": 6, "k2": 5, "k1": 6, "k3": 6}


def test_only_the_inputs_of_the_store_are_read_in_a_group_of_its_own() -> None:
    shadow = build(changelog_config={"elsewhere": {"segment.ms": "60000"}}).shadow("counts").topology()
    assert [spec.name for spec in shadow.inputs] == ["in"]
    assert [spec.topic.name for spec in shadow.changelogs] == ["counting--rebuild-counts-counts-changelog"]
    assert shadow.processor == "counting--rebuild-counts"
    with pytest.raises(ApplicationInvalid, match="shadow is 'count', expected one of counts, elsewhere"):
        build().shadow("count")


def test_long_names_are_shortened_and_stay_different() -> None:
    long = [shadow_group("p" * 120, store) for store in ("one", "two")]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= SHADOW_NAME_MAX


class Refused(BaseSink):
    """A sink that a shadow must neither start nor use."""

    def setup(self) -> None:
        raise AssertionError("a shadow started a sink")

    def add(self, *given: Any) -> None:
        raise AssertionError("a shadow sent a result to a sink")

    def flush(self) -> None:
        """Has nothing to flush."""


def test_a_shadow_starts_no_sink(cluster: InMemoryCluster) -> None:
    """Its sink would take the partitions from the processor's own workers, and remove what they have staged."""
    app = build()
    app._frames["in"].sink(Refused())
    feed(cluster, 1, 2, 3)
    run(cluster, {0: 2, 1: 2}, app=app.shadow("counts"))
