"""The recomputation of the flights demo finds each wrong, missing and extra result, and accepts correct results."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.assets.spark import flights
from holdfast.assets.spark.flights import FlightsComparison, verify_flights
from holdfast.infra.sample_data.flights import Flight, is_disrupted, read_flights, route_of
from holdfast.processors.definitions.fleet import UNSEEN as NO_AIRCRAFT
from holdfast.processors.definitions.fleet import update_aircraft
from holdfast.processors.definitions.routes import UNSEEN as NO_ROUTE
from holdfast.processors.definitions.routes import update_route
from holdfast.processors.definitions.weather import update_hour, with_weather

HOUR_MS = 3_600_000
#: Day in 2013, minutes after midnight, delay, aircraft, origin. The second flight departs after the third.
FLIGHTS = [
    ("01-02", 600, 10, "N1", "EWR"),
    ("01-02", 610, 180, "N1", "JFK"),
    ("01-02", 660, -5, "N1", "EWR"),
    ("01-02", 670, None, "N2", "EWR"),
    ("01-02", 671, 0, "N2", "EWR"),
    ("01-20", 600, 0, "N1", "LGA"),
    ("12-30", 600, 0, "N1", "LGA"),
]
#: Weather observations: airport, day, hour, temperature.
OBSERVED = [
    ("EWR", "01-02", 9, 39.02),
    ("EWR", "01-02", 10, 39.92),
    ("JFK", "01-02", 7, 41.0),
    ("LGA", "01-02", 10, 37.0),
]
BESIDE = {
    "weather.csv": "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,"
    "time_hour\n"
    + "".join(
        f"{origin},2013,1,2,{hour},{temp},NA,NA,NA,10.357019999999999,NA,0,NA,10,2013-{day}T{hour:02}:00:00Z\n"
        for origin, day, hour, temp in OBSERVED
    ),
    "planes.csv": "tailnum,year,type,manufacturer,model,engines,seats,speed,engine\n"
    "N1,NA,Fixed wing multi engine,AIRBUS,A320-214,2,182,NA,Turbo-fan\n",
    "airlines.csv": "carrier,name\nUA,United Air Lines Inc.\n",
}
TABLES = {
    "fleet": "fleet_totals",
    "routes": "route_totals",
    "rotations": "open_sessions",
    "delays": "all_hours",
    "weather": "conditions",
    "models": "model_totals",
    "carriers": "board",
}


def row(day: str, minutes: int, delay: int | None, tailnum: str, origin: str) -> dict[str, Any]:
    month, number = day.split("-")
    due = f"{minutes // 60}{minutes % 60:02}"
    flight = {"year": 2013, "month": int(month), "day": int(number), "sched_dep_time": due, "sched_arr_time": 0}
    flight |= {"dep_time": "NA" if delay is None else due, "dep_delay": "NA" if delay is None else delay}
    flight |= {"arr_time": "NA", "arr_delay": flight["dep_delay"], "carrier": "UA", "flight": 1, "tailnum": tailnum}
    flight |= {"origin": origin, "dest": "IAH", "air_time": "NA" if delay is None else 60, "distance": 100}
    hour = minutes // 60
    return flight | {"hour": hour, "minute": minutes % 60, "time_hour": f"2013-{day}T{hour:02}:00:00Z"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [row(*each) for each in FLIGHTS]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("flights.csv", text.getvalue())
    for name, rows_beside in BESIDE.items():
        (tmp_path / name).write_text(rows_beside)
    monkeypatch.setattr(flights, "flights_file", lambda: path)
    monkeypatch.setattr(flights, "sample_file", lambda name: tmp_path / name)
    return path


class OneKey:
    """The state of one key, for calling a processor's function."""

    def __init__(self, states: dict[tuple[str, str], Any], key: str) -> None:
        self._states, self._key = states, key

    def get(self, name: str, default: Any = None) -> Any:
        return self._states.get((self._key, name), default)

    def set(self, name: str, value: Any) -> None:
        self._states[self._key, name] = value


def totals(file: Path, function: Callable[..., Any], key_of: Callable[[Flight], str]) -> dict[tuple[str, str], Any]:
    """The final value of each key and state key, after all flights."""
    states: dict[tuple[str, str], Any] = {}
    for flight in read_flights(file):
        function(flight, OneKey(states, key_of(flight)))
    return states


def update_with_weather(flight: Flight, state: Any) -> None:
    """Join a disrupted departure with the newest weather at its airport, and count it."""
    if is_disrupted(flight):
        hour = int(flight["hour"])
        seen = [(at, temp) for origin, _, at, temp in OBSERVED if origin == flight["origin"] and hour - 3 < at <= hour]
        at, temp = max(seen) if seen and flight["day"] == 2 else (0, None)
        row = {"time_hour": f"2013-01-02T{at:02}:00:00Z", "temp": temp, "wind_speed": 10.357019999999999}
        update_hour(with_weather(flight, None if temp is None else {**row, "precip": 0.0, "visib": 10.0}), state)


def at(day: str, minutes: int) -> int:
    return int(datetime.fromisoformat(f"2013-{day}T00:00:00Z").timestamp() * 1000) + minutes * 60_000


def session(key: str, start: int, end: int, flights: int, first: str) -> dict[str, Any]:
    known = {"message_key": key, "start": start, "end": end + 1, "flights": flights, "miles": 100 * flights}
    return known | {"minutes_in_air": 60 * flights, "first_airport": first, "last_destination": "IAH"}


def hour(key: str, start: int, *delays: int) -> dict[str, Any]:
    known = {"message_key": key, "start": start, "end": start + HOUR_MS, "departures": len(delays)}
    return known | {"delay": sum(delays), "mean_delay": sum(delays) / len(delays), "worst_delay": max(delays)}


SESSIONS = [
    session("N1", at("01-02", 610), at("01-02", 790), 3, "EWR"),
    session("N2", at("01-02", 671), at("01-02", 671), 1, "EWR"),
    session("N1", at("01-20", 600), at("01-20", 600), 1, "LGA"),
    session("N1", at("12-30", 600), at("12-30", 600), 1, "LGA"),
]
HOURS = [
    hour("EWR", at("01-02", 600), 10, -5),
    hour("EWR", at("01-02", 660), 0),
    hour("JFK", at("01-02", 780), 180),
    hour("LGA", at("01-20", 600), 0),
    hour("LGA", at("12-30", 600), 0),
]
MODELS = [
    {"message_key": "A320-214", "flights": 1, "delay": 180, "mean_delay": 180.0, "worst_delay": 180, "seats": 182}
]
#: Delays per carrier and hour, over all airports. Windows of the last two weeks before the last departure are open.
CARRIER_HOURS = [
    {"name": "United Air Lines Inc.", **hour("UA", start, *delays)}
    for start, delays in [
        (at("01-02", 600), (10, -5)),
        (at("01-02", 660), (0,)),
        (at("01-02", 780), (180,)),
        (at("01-20", 600), (0,)),
    ]
]


class Results:
    """The results of the processors: totals and windows in tables, and windows that were sent."""

    def __init__(self, spark: Any, folder: Path, file: Path) -> None:
        self._spark, self._folder = spark, folder
        self.fleet = totals(file, update_aircraft, lambda flight: flight["tailnum"])
        self.routes = totals(file, update_route, route_of)
        self.weather = totals(file, update_with_weather, lambda flight: flight["origin"])
        self.models = [dict(each) for each in MODELS]
        self.board = dict(CARRIER_HOURS[-1])
        #: Sessions are sent when they close and are in the table while they are open; hours are always in the table.
        self.sent = {
            "rotations": [dict(each) for each in SESSIONS[:3]],
            "delays": [dict(each) for each in HOURS[:4]],
            "carriers": [dict(each) for each in CARRIER_HOURS],
        }
        self.held = {"rotations": [dict(each) for each in SESSIONS[2:]], "delays": [dict(each) for each in HOURS]}

    def compared(self, months: int = 12) -> dict[str, FlightsComparison]:
        for name, states in (("fleet", self.fleet), ("routes", self.routes), ("weather", self.weather)):
            rows = [(*key, json.dumps(value)) for key, value in states.items()]
            frame = self._spark.createDataFrame(rows, "message_key STRING, state_key STRING, json STRING")
            frame.createOrReplaceTempView(TABLES[name])
        self._typed_rows("models", "aggregate", self.models)
        self._typed_rows("carriers", "row", [self.board])
        for name, windows in self.held.items():
            self._tabled(windows).createOrReplaceTempView(TABLES[name])
        paths = {}
        for name, windows in self.sent.items():
            paths[name] = self._folder / f"{name}.jsonl"
            paths[name].write_text("".join(f"{json.dumps(each)}\n" for each in windows))
        return verify_flights(self._spark, lambda processor, store: TABLES[processor], paths.get, months)

    def _typed_rows(self, name: str, state_key: str, rows: list[dict[str, Any]]) -> None:
        kinds = {int: "BIGINT", float: "DOUBLE", str: "STRING"}
        schema = ", ".join(f"{column} {kinds[type(value)]}" for column, value in rows[0].items())
        values = [(state_key, *row.values()) for row in rows]
        self._spark.createDataFrame(values, f"state_key STRING, {schema}").createOrReplaceTempView(TABLES[name])

    def _tabled(self, windows: list[dict[str, Any]]) -> Any:
        """Windows as rows of a window table: numbers are DOUBLE, other values are STRING; an internal row is added."""
        kinds = {int: "DOUBLE", float: "DOUBLE", str: "STRING"}
        columns = {name: kinds[type(value)] for name, value in windows[0].items() if name not in ("start", "end")}
        columns |= {"window_start": "TIMESTAMP", "window_end": "TIMESTAMP"}
        rows = [self._typed(each, columns) for each in windows]
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        return self._spark.createDataFrame([*rows, ("\0holdfast", *[None] * (len(columns) - 1))], schema)

    @staticmethod
    def _typed(window: dict[str, Any], columns: dict[str, str]) -> tuple[Any, ...]:
        times = {f"window_{name}": datetime.fromtimestamp(window[name] / 1000, UTC) for name in ("start", "end")}
        found = {**window, **times}
        return tuple(float(found[name]) if kind == "DOUBLE" else found[name] for name, kind in columns.items())


@pytest.mark.thorough
def test_right_results_have_no_mismatch_and_each_wrong_one_is_found(spark: Any, file: Path, tmp_path: Path) -> None:
    results = Results(spark, tmp_path, file)
    found = results.compared()
    assert {name: (one.keys, one.mismatches, one.examples) for name, one in found.items()} == {
        "fleet": (2, 0, ()),
        "routes": (3, 0, ()),
        "rotations": (4, 0, ()),
        "delays": (5, 0, ()),
        "weather": (2, 0, ()),
        "models": (1, 0, ()),
        "carriers": (5, 0, ()),
    }
    january = results.compared(months=1)
    assert {name: one.mismatches for name, one in january.items() if name in ("fleet", "routes", "delays")} == {
        "fleet": 1,
        "routes": 1,
        "delays": 1,
    }
    results.fleet["N1", "aircraft"]["miles"] += 1
    results.fleet["N3", "aircraft"] = dict(NO_AIRCRAFT)
    del results.routes["JFK-IAH-UA", "route"]
    results.routes["EWR-IAH-UA", "route"] = {**NO_ROUTE, "flights": 4}
    results.weather["EWR", "2013-01-02T11:00:00Z"]["temperature"] = 39.02  # the temperature of an earlier observation
    results.weather["JFK", "2013-01-02T11:00:00Z"] = results.weather.pop(("JFK", "2013-01-02T10:00:00Z"))
    results.models[0]["seats"] = 0
    results.sent["carriers"][1]["name"] = None  # a window sent before the airline was known
    # A window that is still open, but was sent.
    results.sent["carriers"].append({"name": "United Air Lines Inc.", **hour("UA", at("12-30", 600), 0)})
    results.board = dict(CARRIER_HOURS[2])  # a window that is older than the newest one
    results.sent["rotations"][0]["end"] += 1  # a session whose end is too late
    del results.sent["rotations"][1]  # a session that is neither sent nor in the table
    results.held["rotations"][0]["flights"] = 2  # a window that was sent with other content than the table has
    results.sent["delays"].append(hour("LGA", at("01-20", 660), 0))  # a window that does not exist
    results.held["delays"][0]["mean_delay"] = 2.4
    found = results.compared()
    assert {name: one.mismatches for name, one in found.items()} == {
        "fleet": 2,
        "routes": 2,
        "rotations": 3,
        "delays": 2,
        "weather": 3,
        "models": 1,
        "carriers": 4,
    }
    assert [each["message_key"] for each in found["rotations"].examples] == ["N1", "N1", "N2"]
