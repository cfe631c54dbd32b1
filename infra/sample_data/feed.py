"""Sends the flights, in the order of scheduled departure, and the tables that they are joined with.

The key in ``flights`` is the aircraft's tail number, if the flight has one. The key in ``departures`` is the route, the
key in ``origins`` the airport of origin. The key in ``weather`` is the airport, in ``planes`` the tail number, and in
``airlines`` the carrier.

Invariants:
    - Each flight is sent once to each of its topics; otherwise an error is raised.
    - Weather, aircraft and airlines of the year are acknowledged before the first flight is sent.
    - Topics with records are not fed again, unless ``again`` is set.
    - A record's timestamp is the scheduled departure, or the hour of the weather. Aircraft and airlines have the
      beginning of the year.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.feeder import Feeder
from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.sample_data.flights import BY_MONTH, due_ms, flights_of, read_flights, route_of
from holdfast.infra.sample_data.reference import (
    YEAR_MS,
    Row,
    observed_ms,
    read_airlines,
    read_planes,
    read_weather,
)
from holdfast.infra.waiting import wait_until

FLIGHTS_TOPIC = "flights"
DEPARTURES_TOPIC = "departures"
ORIGINS_TOPIC = "origins"
WEATHER_TOPIC = "weather"
PLANES_TOPIC = "planes"
AIRLINES_TOPIC = "airlines"
#: The source topics: each of the first three gets each flight once; the others get the join tables.
TOPICS = (FLIGHTS_TOPIC, DEPARTURES_TOPIC, ORIGINS_TOPIC, WEATHER_TOPIC, PLANES_TOPIC, AIRLINES_TOPIC)

#: Flights between two checks of the pace.
_PACE_EVERY = 200
#: Pause between two calls of ``progress``, seconds.
_PROGRESS_EVERY_S = 0.25
#: How long brokers may take to list a new topic, seconds.
_CREATED_WITHIN_S = 3.0


class FedBefore(HoldfastError):
    """A source topic holds records already."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """Progress of the feed: ``flights`` of ``total`` after ``seconds``."""

    flights: int
    total: int
    without_aircraft: int
    seconds: float

    @property
    def flights_per_second(self) -> float:
        """Average rate so far."""
        return self.flights / self.seconds if self.seconds > 0 else 0.0


def feed(
    bootstrap: str,
    extra_config: ClientConfig | None = None,
    *,
    flights_per_second: int | None = None,
    months: int = len(BY_MONTH),
    limit: int | None = None,
    again: bool = False,
    progress: Callable[[FeedProgress], None] | None = None,
) -> FeedProgress:
    """Send weather, aircraft, airlines and then the flights; returns when every record is acknowledged.

    The defaults send all flights at full speed; with ``months``, the flights of the first months of the year. ``again``
    also feeds topics that hold records: processors then count every flight again. ``progress`` is called a few times a
    second; an error that it raises ends the feed.

    Raises:
        FedBefore: A topic holds records, and ``again`` is not set.
        TopicUnusable: A topic does not exist.
        KafkaFailed: Kafka refused a record.
    """
    _refuse_fed(Topics(bootstrap, extra_config), again=again)
    total = flights_of(months) if limit is None else min(limit, flights_of(months))
    encode = msgspec.json.Encoder().encode
    with Feeder(bootstrap, extra_config) as feeder:
        for topic, key, row, time_ms in _references(months):
            feeder.send(topic, row[key].encode(), encode(row), time_ms)
    flights = read_flights(limit=limit, months=months)
    sent = without_aircraft = 0
    began = reported = time.monotonic()
    with Feeder(bootstrap, extra_config) as feeder:
        for flight in flights:
            if sent == 0:
                # Reading and sorting the file is not part of the measured time.
                began = reported = time.monotonic()
            value, due, tailnum = encode(flight), due_ms(flight), flight["tailnum"]
            without_aircraft += tailnum is None
            feeder.send(FLIGHTS_TOPIC, None if tailnum is None else tailnum.encode(), value, due)
            feeder.send(DEPARTURES_TOPIC, route_of(flight).encode(), value, due)
            feeder.send(ORIGINS_TOPIC, flight["origin"].encode(), value, due)
            sent += 1
            if sent % _PACE_EVERY:
                continue
            feeder.poll()
            now = time.monotonic()
            if progress is not None and now - reported >= _PROGRESS_EVERY_S:
                reported = now
                progress(FeedProgress(sent, total, without_aircraft, now - began))
            if flights_per_second is not None:
                early_s = sent / flights_per_second - (now - began)
                if early_s > 0:
                    time.sleep(early_s)
    done = FeedProgress(sent, total, without_aircraft, time.monotonic() - began)
    if progress is not None:
        progress(done)
    return done


def _references(months: int) -> Iterator[tuple[str, str, Row, int]]:
    """What flights are joined with: topic, the column with the key, row, and time."""
    for plane in read_planes():
        yield PLANES_TOPIC, "tailnum", plane, YEAR_MS
    for airline in read_airlines():
        yield AIRLINES_TOPIC, "carrier", airline, YEAR_MS
    for observation in read_weather(months):
        yield WEATHER_TOPIC, "origin", observation, observed_ms(observation)


def _refuse_fed(topics: Topics, *, again: bool) -> None:
    # Brokers list a new topic with a delay.
    wait_until(lambda: len(topics.describe(TOPICS)) == len(TOPICS), _CREATED_WITHIN_S)
    there = topics.describe(TOPICS)
    for name in TOPICS:
        if name not in there:
            raise TopicUnusable(
                f"The source topic {name} does not exist.",
                action="Materialise the processors' changelogs, which creates their topics, or run `holdfast demo`.",
                topic=name,
            )
        held = sum(topics.end_offsets(name, committed=False).values())
        if held and not again:
            raise FedBefore(
                f"The source topic {name} holds {held} records already; expected an empty topic.",
                action="Set `again` to feed every flight again, or start with an empty home folder.",
                topic=name,
                records=held,
            )
