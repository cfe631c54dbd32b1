"""Sensor ticks for fifty processors with two hundred stores. A tick sends few requests and events.

Workers that do not answer must not delay a tick.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from holdfast.assets.checks.arrivals import MESSAGES_ARRIVE
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.sensors import recovery
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.deploy.observing_all import SIDE_BY_SIDE
from tests.parts.fleet import PROCESSORS, STORES, Fleet, names, write_definitions


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("many")


@pytest.fixture(scope="module")
def environment(home: Path) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(home))
        patch.setenv("HOLDFAST_HOME", str(home / "home"))
        patch.setenv("HOLDFAST_PROCESSORS", write_definitions(home, "many_processors"))
        yield patch


@pytest.fixture(scope="module")
def settings(environment: pytest.MonkeyPatch) -> Settings:
    return load_settings()


@pytest.fixture(scope="module")
def fleet(settings: Settings) -> Iterator[Fleet]:
    registry = open_registry(settings)
    there = Fleet(settings)
    try:
        yield there.start(registry)
    finally:
        there.stop()
        registry.close()


@pytest.fixture(scope="module")
def definitions(settings: Settings) -> dg.Definitions:
    return build_definitions(settings)


class Ticks:
    """Runs consecutive ticks of one sensor. Each tick gets the cursor that the tick before returned."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance, name: str) -> None:
        self._definitions, self._instance = definitions, instance
        self._sensor = definitions.resolve_sensor_def(name)
        self.cursor: str | None = None

    def __call__(self):
        with dg.build_sensor_context(
            instance=self._instance,
            resources=self._definitions.resources,
            definitions=self._definitions,
            cursor=self.cursor,
        ) as context:
            data = self._sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def test_all_of_them_are_in_the_graph(definitions: dg.Definitions) -> None:
    kinds = Counter(key.path[0] for key in definitions.resolve_asset_graph().get_all_asset_keys())
    assert kinds["processors"] == PROCESSORS
    assert kinds["state"] == kinds["changelogs"] == PROCESSORS * STORES


@pytest.mark.thorough
@pytest.mark.parametrize("sensor", ["processor_recovery", "processor_telemetry"])
def test_a_tick_asks_each_worker_once_and_the_supervisor_once(
    fleet: Fleet,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    sensor: str,
) -> None:
    listed = []
    programs = type(fleet.supervisor).programs
    monkeypatch.setattr(type(fleet.supervisor), "programs", lambda self: listed.append(1) or programs(self))
    fleet.questions.clear()
    tick = Ticks(definitions, instance, sensor)()
    assert Counter(fleet.questions) == dict.fromkeys(names(), 1)
    assert len(listed) == 1
    assert not tick.run_requests


def test_a_minute_writes_a_bounded_number_of_events(
    fleet: Fleet, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(definitions, instance, "processor_telemetry")
    begun = ticks().asset_events
    told = Counter(event.asset_key.path[0] for event in begun if isinstance(event, dg.AssetObservation))
    assert told["processors"] == PROCESSORS
    checks = Counter(event.check_name for event in begun if isinstance(event, dg.AssetCheckEvaluation))
    assert checks == {MESSAGES_ARRIVE: PROCESSORS}
    assert 0 < told["state"] <= recovery.STATES_PER_TICK
    # later ticks write only changes: on a busy machine, a worker may have answered the first tick late
    assert len(ticks().asset_events) < PROCESSORS // 2


FACTS = {"instances": 2, "tasks_running": 8, "records_processed": 10, "lag_records": 5_000}


@pytest.mark.parametrize(
    ("changed", "after_s", "news"),
    [
        ({}, 60, False),
        ({"records_processed": 99, "lag_records": 9_000}, 60, False),
        ({}, recovery.OBSERVE_EVERY_S, True),
        ({"instances": 1}, 60, True),
        ({"tasks_running": 7}, 60, True),
        ({"lag_records": 11_000}, 60, True),
        ({"lag_records": 2_000}, 60, True),
        ({"lag_records": 0}, 60, True),
        ({"lag_records": None}, 60, True),
    ],
)
def test_an_observation_is_logged_when_it_is_news(changed: dict[str, int | None], after_s: float, news: bool) -> None:
    facts = {name: value for name, value in (FACTS | changed).items() if value is not None}
    assert recovery.is_news(facts, FACTS | {"told_at": 1_000.0}, 1_000.0 + after_s) is news
    assert recovery.is_news(facts, None, 1_000.0)


def test_a_small_lag_that_comes_and_goes_is_no_news() -> None:
    small = FACTS | {"lag_records": 1_900}
    assert not recovery.is_news(small, FACTS | {"lag_records": 0, "told_at": 0.0}, 60.0)


def test_every_state_has_its_turn() -> None:
    states = [(name, f"store{number}") for name in names() for number in range(STORES)]
    told: Counter[tuple[str, str]] = Counter()
    first = None
    for _ in range(len(states) // recovery.STATES_PER_TICK):
        turn, first = recovery.turn(states, first)
        assert len(turn) == recovery.STATES_PER_TICK
        told.update(turn)
    assert told == dict.fromkeys(states, 1)
    assert recovery.turn(states[:3], ["gone", "since"]) == (states[:3], [])
    assert recovery.turn([], None) == ([], [])


@pytest.mark.thorough
def test_when_nothing_is_wrong_recovery_writes_nothing(
    fleet: Fleet, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(definitions, instance, "processor_recovery")
    ticks()
    again = ticks()
    assert (len(again.asset_events), again.run_requests or []) == (0, [])


@pytest.mark.thorough
@pytest.mark.parametrize("silent", [8, pytest.param(PROCESSORS, marks=pytest.mark.thorough)])
def test_silent_workers_are_waited_for_side_by_side(
    fleet: Fleet, definitions: dg.Definitions, instance: dg.DagsterInstance, silent: int
) -> None:
    """The sensor waits for silent workers in parallel.

    One after the other, they would take 100 s. Dagster limits a tick to 60 s, so no processor would ever be recovered.
    """
    fleet.silent = set(names(silent))
    try:
        tick = Ticks(definitions, instance, "processor_recovery")()
    finally:
        fleet.silent = set()
    assert tick.skip_message or tick.run_requests
    # fifty workers, four at a time with a timeout of 2 s each, take 25 s
    assert 4 <= fleet.most_waiting <= SIDE_BY_SIDE
