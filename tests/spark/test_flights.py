"""The recomputation of the flights finds each wrong, missing and additional result, and takes right ones."""

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
from holdfast.infra.sample_data.flights import Flight, read_flights, route_of
from holdfast.processors.definitions.fleet import UNSEEN as NO_AIRCRAFT
from holdfast.processors.definitions.fleet import update_aircraft
from holdfast.processors.definitions.routes import UNSEEN as NO_ROUTE
from holdfast.processors.definitions.routes import update_route

HOUR_MS = 3_600_000
#: Day in 2013, minutes after midnight, delay, aircraft, origin. The second one leaves behind the third one.
FLIGHTS = [
    ("01-02", 600, 10, "N1", "EWR"),
    ("01-02", 610, 180, "N1", "JFK"),
    ("01-02", 660, -5, "N1", "EWR"),
    ("01-02", 670, None, "N2", "EWR"),
    ("01-02", 671, 0, "N2", "EWR"),
    ("01-20", 600, 0, "N1", "LGA"),
    ("12-30", 600, 0, "N1", "LGA"),
]
TABLES = {"fleet": "fleet_totals", "routes": "route_totals", "rotations": "open_sessions", "delays": "all_hours"}


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
    monkeypatch.setattr(flights, "flights_file", lambda: path)
    return path


class OneKey:
    """The state of a key, for a processor's function."""

    def __init__(self, states: dict[str, Any], key: str) -> None:
        self._states, self._key = states, key

    def get(self, name: str, default: Any = None) -> Any:
        return self._states.get(self._key, default)

    def set(self, name: str, value: Any) -> None:
        self._states[self._key] = value


def totals(file: Path, function: Callable[..., Any], key_of: Callable[[Flight], str]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for flight in read_flights(file):
        function(flight, OneKey(states, key_of(flight)))
    return states


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


class Results:
    """What processors made of the flights: totals and windows in tables, and windows that were sent."""

    def __init__(self, spark: Any, folder: Path, file: Path) -> None:
        self._spark, self._folder = spark, folder
        self.fleet = totals(file, update_aircraft, lambda flight: flight["tailnum"])
        self.routes = totals(file, update_route, route_of)
        #: Sessions are sent when they are closed, and are in the table while they are open; hours are always there.
        self.sent = {"rotations": [dict(each) for each in SESSIONS[:3]], "delays": [dict(each) for each in HOURS[:4]]}
        self.held = {"rotations": [dict(each) for each in SESSIONS[2:]], "delays": [dict(each) for each in HOURS]}

    def compared(self) -> dict[str, FlightsComparison]:
        for name, states in (("fleet", self.fleet), ("routes", self.routes)):
            rows = [(key, json.dumps(value)) for key, value in states.items()]
            frame = self._spark.createDataFrame(rows, "message_key STRING, json STRING")
            frame.createOrReplaceTempView(TABLES[name])
        paths = {}
        for name, windows in self.held.items():
            self._tabled(windows).createOrReplaceTempView(TABLES[name])
            paths[name] = self._folder / f"{name}.jsonl"
            paths[name].write_text("".join(f"{json.dumps(each)}\n" for each in self.sent[name]))
        return verify_flights(self._spark, lambda processor, store: TABLES[processor], lambda: paths)

    def _tabled(self, windows: list[dict[str, Any]]) -> Any:
        """Windows with the types of a window's table: totals are floating, values are text; one row is no window."""
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


def test_right_results_have_no_mismatch_and_each_wrong_one_is_found(spark: Any, file: Path, tmp_path: Path) -> None:
    results = Results(spark, tmp_path, file)
    found = results.compared()
    assert {name: (one.keys, one.mismatches, one.examples) for name, one in found.items()} == {
        "fleet": (2, 0, ()),
        "routes": (3, 0, ()),
        "rotations": (4, 0, ()),
        "delays": (5, 0, ()),
    }
    results.fleet["N1"]["miles"] += 1
    results.fleet["N3"] = dict(NO_AIRCRAFT)
    del results.routes["JFK-IAH-UA"]
    results.routes["EWR-IAH-UA"] = {**NO_ROUTE, "flights": 4}
    results.sent["rotations"][0]["end"] += 1  # one that ended later
    del results.sent["rotations"][1]  # one that is neither sent nor held
    results.held["rotations"][0]["flights"] = 2  # one that was sent with another content than the table has
    results.sent["delays"].append(hour("LGA", at("01-20", 660), 0))  # one that there was not
    results.held["delays"][0]["mean_delay"] = 2.4
    found = results.compared()
    assert {name: one.mismatches for name, one in found.items()} == {
        "fleet": 2,
        "routes": 2,
        "rotations": 3,
        "delays": 2,
    }
    assert [each["message_key"] for each in found["rotations"].examples] == ["N1", "N1", "N2"]
