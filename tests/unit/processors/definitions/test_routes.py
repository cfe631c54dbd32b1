"""How the processor `routes` updates its state with each flight."""

from __future__ import annotations

from typing import Any

from holdfast.processors.definitions.routes import UNSEEN, WINDOW, application, update_route


class DictState(dict[str, Any]):
    """A dict with the methods of `State` that a pure update function needs."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default)


def flight(delay: int | None, *, left: bool = True) -> dict[str, Any]:
    return {"origin": "EWR", "dest": "IAH", "carrier": "UA", "dep_time": 517 if left else None, "arr_delay": delay}


def test_the_average_moves_over_the_last_arrivals() -> None:
    state = DictState()
    for delay in range(WINDOW + 5):
        result = update_route(flight(delay), state)
    assert result["delays"] == list(range(5, WINDOW + 5))
    assert result["moving_average"] == 14.5
    assert result["flights"] == WINDOW + 5


def test_cancelled_and_diverted_flights_leave_the_average_alone() -> None:
    state = DictState()
    assert update_route(flight(None, left=False), state)["moving_average"] is None
    update_route(flight(1), state)
    update_route(flight(None), state)
    update_route(flight(2), state)
    result = update_route(flight(2), state)
    assert result == {
        "route": "EWR-IAH-UA",
        "flights": 5,
        "cancelled": 1,
        "delays": [1, 2, 2],
        "moving_average": 1.666667,
    }
    assert UNSEEN == {"flights": 0, "cancelled": 0, "delays": [], "moving_average": None}


def test_its_topology() -> None:
    topology = application.topology()
    assert [spec.name for spec in topology.topics()] == [
        "departures",
        "routes-updates",
        "routes-dead-letters",
        "routes-routes-changelog",
    ]
