"""Sends the demo's data to Kafka: flights in the order of their scheduled departure, weather, aircraft and airlines.

The key in ``flights`` is the aircraft's tail number (null if unknown), and in ``departures`` the route. The key in
``origins`` and ``weather`` is the airport, in ``planes`` the tail number, and in ``airlines`` the carrier.

Invariants:
    - Each flight is sent once to each of its three topics; otherwise an error is raised.
    - All weather, aircraft and airlines are acknowledged before the first flight is sent.
    - If a topic already has records, nothing is sent, unless ``again`` is set.
    - The timestamp of a flight is its scheduled departure. The timestamp of weather is the hour of the observation. The
      timestamp of aircraft and airlines is the beginning of the year.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.kafka.topics.topics import Topics
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
#: All topics of the demo. The first three get every flight once. The last three get data to join with flights.
TOPICS = (FLIGHTS_TOPIC, DEPARTURES_TOPIC, ORIGINS_TOPIC, WEATHER_TOPIC, PLANES_TOPIC, AIRLINES_TOPIC)

#: Number of flights after which the rate is checked; if the rate is too high, the feed pauses.
_PACE_EVERY = 200
#: Minimum seconds between two calls of ``progress``.
_PROGRESS_EVERY_S = 0.25
#: Maximum seconds until brokers list a new topic.
_CREATED_WITHIN_S = 3.0


class FedBefore(HoldfastError):
    """A source topic already has records, so nothing was sent."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """Progress of the feed: ``flights`` of ``total`` flights were sent after ``seconds`` seconds.

    ``without_aircraft`` of these flights have no tail number.
    """

    flights: int
    total: int
    without_aircraft: int
    seconds: float

    @property
    def flights_per_second(self) -> float:
        """Average number of flights sent per second so far."""
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

    By default, all flights are sent at full speed; ``months`` limits them to the first months of the year. With
    ``again=True``, topics that have records get the flights again, and processors count them again. ``progress`` is
    called a few times a second; if it raises an error, the feed ends.

    Raises:
        FedBefore: A topic already has records, and ``again`` is not set.
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
                # The feed's rate is measured from the first flight, without the time to read and sort the file.
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
    """Yields the records that processors join with flights, as (topic, column with the key, row, timestamp in ms)."""
    for plane in read_planes():
        yield PLANES_TOPIC, "tailnum", plane, YEAR_MS
    for airline in read_airlines():
        yield AIRLINES_TOPIC, "carrier", airline, YEAR_MS
    for observation in read_weather(months):
        yield WEATHER_TOPIC, "origin", observation, observed_ms(observation)


def _refuse_fed(topics: Topics, *, again: bool) -> None:
    # Wait for the topics, because brokers list a new topic with a delay.
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
