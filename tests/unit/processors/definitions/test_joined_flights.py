"""The processors `weather`, `models` and `carriers` join flights with rows that were sent before the first flight."""

from __future__ import annotations

import json
from typing import Any

from holdfast import Application, InMemoryCluster
from holdfast.infra.sample_data.flights import Flight, due_ms, route_of
from holdfast.infra.sample_data.reference import YEAR_MS, observed_ms
from holdfast.orchestration.demo.closed_windows import Departures, closed_hours_of_carriers, departure
from holdfast.processors.definitions import RESULTS, carriers, delays, fleet, models, rotations, routes, weather

HOUR_MS = 3_600_000
PARTITIONS = 4


def flight(day: int, hour: int, minute: int, delay: int | None, **changes: Any) -> Flight:
    usual = {"tailnum": "N1", "origin": "EWR", "dest": "IAH", "carrier": "UA"}
    time_hour = f"2013-03-{day:02}T{hour:02}:00:00Z"
    return {**usual, "time_hour": time_hour, "minute": minute, "dep_delay": delay, **changes}


def observation(day: int, hour: int, temp: float, origin: str = "EWR") -> dict[str, Any]:
    seen = {"temp": temp, "wind_speed": 10.5, "precip": 0.0, "visib": None}
    return {"origin": origin, "time_hour": f"2013-03-{day:02}T{hour:02}:00:00Z", **seen}


class Run:
    """Runs an application on flights. Rows for its tables are sent first, each as topic, key, time and value."""

    def __init__(
        self, application: Application, key: str, flights: list[Flight], *rows: tuple[str, str, int, Any]
    ) -> None:
        self.cluster, self.topology = InMemoryCluster(), application.topology()
        for spec in self.topology.sources:
            self.cluster.create_topic(spec.name, PARTITIONS)
        for topic, name, time_ms, row in rows:
            self.cluster.produce(topic, json.dumps(row).encode(), name.encode(), timestamp_ms=time_ms)
        for each in flights:
            named = route_of(each) if key == "route" else each[key]
            value, text = json.dumps(each).encode(), None if named is None else named.encode()
            self.cluster.produce(self.topology.inputs[0].name, value, text, timestamp_ms=due_ms(each))
        self.cluster.run(application)
        assert self.cluster.read(f"{self.topology.processor}-dead-letters") == []

    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        records = [record for _, record in self.cluster.read(self.topology.outputs[0].name)]
        return [((each.key or b"").decode(), json.loads(each.value or b"")) for each in records]


def test_a_disrupted_departure_has_the_weather_that_was_observed_at_or_before_its_scheduled_time() -> None:
    seen = [observation(1, hour, 30.0 + hour) for hour in (8, 9, 11, 23)] + [observation(1, 9, 50.0, "JFK")]
    rows = [("weather", each["origin"], observed_ms(each), each) for each in seen]
    flights = [
        flight(1, 9, 0, 60),
        flight(1, 9, 59, None),
        flight(1, 9, 30, 59),  # late, but not enough to count as a disruption
        flight(1, 9, 40, 90, origin="JFK"),
        flight(1, 10, 0, 75),  # no observation exists for this hour
        flight(1, 15, 0, 80),  # the newest observation is older than three hours
    ]
    run = Run(weather.application, "origin", flights, *rows)
    made = {key: (hour["flights"], hour["minutes_late"], hour["temperature"]) for key, hour in run.sent()}
    assert made == {
        "EWR 2013-03-01T09:00:00Z": (2, 60, 39.0),
        "JFK 2013-03-01T09:00:00Z": (1, 90, 50.0),
        "EWR 2013-03-01T10:00:00Z": (1, 75, 39.0),
        "EWR 2013-03-01T15:00:00Z": (1, 80, None),
    }
    state = run.cluster.state(weather.application, "conditions")
    assert state[(b"EWR", "2013-03-01T09:00:00Z")] == {
        "flights": 2,
        "cancelled": 1,
        "minutes_late": 60,
        "observed": "2013-03-01T09:00:00Z",
        "temperature": 39.0,
        "wind": 10.5,
        "rain": 0.0,
        "visibility": None,
    }


def test_long_delays_count_for_the_model_of_their_aircraft() -> None:
    planes = [
        ("planes", name, YEAR_MS, {"tailnum": name, "model": model, "seats": seats})
        for name, model, seats in [("N1", "A320", 180), ("N2", "A320", 182), ("N3", "MD-88", 142)]
    ]
    flights = [
        flight(1, 9, 0, 60),
        flight(1, 9, 5, 59),
        flight(1, 9, 10, 120, tailnum="N2"),
        flight(1, 9, 20, 90, tailnum="N9"),
        flight(1, 9, 30, None, tailnum=None),
    ]
    run = Run(models.application, "tailnum", flights, *planes)
    newest = dict(run.sent())
    a320 = {"flights": 2, "delay": 180, "mean_delay": 90.0, "worst_delay": 120, "seats": 362}
    unknown = {"flights": 1, "delay": 90, "mean_delay": 90.0, "worst_delay": 90, "seats": 0}
    assert newest == {"A320": a320, models.UNKNOWN: unknown}


AIRLINES = [
    ("airlines", carrier, YEAR_MS, {"carrier": carrier, "name": name})
    for carrier, name in [("UA", "United Air Lines Inc."), ("B6", "JetBlue Airways")]
]
#: The routes are in several partitions. The last flight closes the hours of all partitions.
FLIGHTS = [
    flight(1, 9, 0, 10),
    flight(1, 9, 5, 20, carrier="B6", origin="JFK"),
    flight(1, 9, 10, 20, dest="MIA"),
    flight(1, 9, 15, None),
    flight(1, 9, 20, 60, dest="ORD"),
    flight(1, 9, 30, 5, carrier="ZZ", dest="ORD"),
    flight(30, 9, 0, 0, origin="LGA"),
]


def test_an_hour_of_a_carrier_is_sent_with_its_name_and_the_newest_one_is_its_row() -> None:
    run = Run(carriers.application, "route", FLIGHTS, *AIRLINES)
    start = due_ms(flight(1, 9, 0, 0))
    united = {
        "name": "United Air Lines Inc.",
        "start": start,
        "end": start + HOUR_MS,
        "departures": 2,
        "delay": 30,
        "mean_delay": 15.0,
        "worst_delay": 20,
    }
    later = {"start": start + HOUR_MS, "end": start + 2 * HOUR_MS, "departures": 1, "delay": 60}
    later = {**united, **later, "mean_delay": 60.0, "worst_delay": 60}
    sent = run.sent()
    assert [hour for key, hour in sent if key == "UA"] == [united, later]
    assert {key: hour["name"] for key, hour in sent} == {
        "UA": "United Air Lines Inc.",
        "B6": "JetBlue Airways",
        "ZZ": None,
    }
    board = run.cluster.state(carriers.application, "board")
    assert {key: row for (key, name), row in board.items() if name == "row"} == {
        key.encode(): hour for key, hour in dict(sent).items()
    }


def test_the_hours_that_the_demo_expects_are_sent() -> None:
    expected = Departures()
    for each in FLIGHTS:
        expected.add(each["carrier"], departure(each))
    made: dict[str, list[int]] = {}
    for key, hour in Run(carriers.application, "route", FLIGHTS, *AIRLINES).sent():
        made.setdefault(key, []).append(hour["start"])
    assert made == {carrier: starts for carrier, starts in closed_hours_of_carriers(expected).items() if starts}


def test_their_topics_and_the_typed_columns_of_their_results() -> None:
    assert [spec.name for spec in weather.application.topology().topics()] == [
        "origins",
        "weather",
        "weather-updates",
        "weather-dead-letters",
        "weather-observations-changelog",
        "weather-conditions-changelog",
    ]
    assert [spec.topic for spec in models.application.topology().repartitions] == ["models-model-repartition"]
    assert [spec.topic for spec in carriers.application.topology().repartitions] == ["carriers-carrier-repartition"]
    for module in (fleet, routes, rotations, delays, weather, models, carriers):
        topology = module.application.topology()
        (result,) = [spec for spec in topology.stores if spec.name == RESULTS[topology.processor]]
        assert result.schema is not None
