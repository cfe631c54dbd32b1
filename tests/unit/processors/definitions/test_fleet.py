"""How the processor `fleet` updates its state with each flight."""

from __future__ import annotations

from typing import Any

from holdfast.processors.definitions.fleet import UNSEEN, application, update_aircraft


class DictState(dict[str, Any]):
    """A dict with the methods of `State` that a pure update function needs."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default)


def flight(**changes: Any) -> dict[str, Any]:
    usual = {"year": 2013, "month": 1, "day": 2, "dep_time": 517, "arr_delay": 11, "air_time": 227, "distance": 1400}
    return {**usual, "dest": "IAH", "tailnum": "N1", **changes}


def test_each_flight_is_added() -> None:
    state = DictState()
    first = update_aircraft(flight(), state)
    assert first == {
        "tailnum": "N1",
        "flights": 1,
        "minutes_in_air": 227,
        "miles": 1400,
        "worst_arrival_delay": 11,
        "last_airport": "IAH",
        "first_departure": "2013-01-02T05:17",
        "last_departure": "2013-01-02T05:17",
    }
    second = update_aircraft(flight(dep_time=2400, arr_delay=-4, air_time=10, distance=5, dest="MIA"), state)
    assert second == {**first, **state["aircraft"]}
    assert state["aircraft"] == {
        "flights": 2,
        "minutes_in_air": 237,
        "miles": 1405,
        "worst_arrival_delay": 11,
        "last_airport": "MIA",
        "first_departure": "2013-01-02T05:17",
        "last_departure": "2013-01-02T24:00",
    }


def test_a_cancelled_flight_counts_but_moves_nothing() -> None:
    state = DictState()
    update_aircraft(flight(dep_time=None, arr_delay=None, air_time=None, dest="SFO"), state)
    assert state["aircraft"] == {**UNSEEN, "flights": 1, "miles": 1400}
    update_aircraft(flight(arr_delay=-30), state)
    update_aircraft(flight(dep_time=None, arr_delay=None, air_time=None, dest="SFO"), state)
    assert state["aircraft"]["worst_arrival_delay"] == -30
    assert state["aircraft"]["last_airport"] == "IAH"
    assert UNSEEN["flights"] == 0


def test_its_topology() -> None:
    topology = application.topology()
    assert [(spec.name, spec.partitions) for spec in topology.topics()] == [
        ("flights", 4),
        ("fleet-updates", 4),
        ("fleet-dead-letters", None),
        ("fleet-aircraft-changelog", None),
    ]
