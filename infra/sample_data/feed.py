"""Feeds the flights into the two source topics, in the order in which they were due to leave.

``flights`` is keyed by the aircraft's tail number (no key when there is none), ``departures`` by the route.

Invariants:
    - Each flight is sent once to each topic, or an error says that it was not.
    - Topics that hold records already are not fed again, unless that is asked for.
    - A record's timestamp is the moment at which the flight was due to leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.feeder import Feeder
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.sample_data.flights import FLIGHTS, due_ms, read_flights, route_of

FLIGHTS_TOPIC = "flights"
DEPARTURES_TOPIC = "departures"

#: Progress is told so often, and the pace is looked at, in flights.
_PACE_EVERY = 200
_TELL_EVERY_S = 0.25
_CREATED_WITHIN_S = 3.0


class FedBefore(HoldfastError):
    """The source topics hold records already."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """How far the feed is; ``flights`` of ``total``, after ``seconds``."""

    flights: int
    total: int
    without_aircraft: int
    seconds: float

    @property
    def flights_per_second(self) -> float:
        """The rate so far."""
        return self.flights / self.seconds if self.seconds > 0 else 0.0


def feed(
    bootstrap: str,
    extra_config: Mapping[str, str | int | float | bool] | None = None,
    *,
    flights_per_second: int | None = None,
    limit: int | None = None,
    again: bool = False,
    progress: Callable[[FeedProgress], None] | None = None,
) -> FeedProgress:
    """Send the flights to both topics; returns when every record is acknowledged.

    Args:
        bootstrap: Kafka's bootstrap servers.
        extra_config: Security settings.
        flights_per_second: The pace; None for as fast as it goes.
        limit: Only the first so many flights; None for all.
        again: Feed even if the topics hold records already: every flight is then counted once more.
        progress: Called a few times a second. What it raises stops the feed.

    Raises:
        FedBefore: The topics hold records, and ``again`` was not given.
        TopicUnusable: A topic is missing.
        KafkaFailed: Records could not be delivered.
    """
    _refuse_fed(Topics(bootstrap, extra_config), again=again)
    total = FLIGHTS if limit is None else min(limit, FLIGHTS)
    encode = msgspec.json.Encoder().encode
    flights = read_flights(limit=limit)
    sent = without_aircraft = 0
    began = told = time.monotonic()
    with Feeder(bootstrap, extra_config) as feeder:
        for flight in flights:
            if sent == 0:
                # Reading and sorting the file is not part of the pace.
                began = told = time.monotonic()
            value, due, tailnum = encode(flight), due_ms(flight), flight["tailnum"]
            without_aircraft += tailnum is None
            feeder.send(FLIGHTS_TOPIC, None if tailnum is None else tailnum.encode(), value, due)
            feeder.send(DEPARTURES_TOPIC, route_of(flight).encode(), value, due)
            sent += 1
            if sent % _PACE_EVERY:
                continue
            feeder.poll()
            now = time.monotonic()
            if progress is not None and now - told >= _TELL_EVERY_S:
                told = now
                progress(FeedProgress(sent, total, without_aircraft, now - began))
            if flights_per_second is not None:
                early_s = sent / flights_per_second - (now - began)
                if early_s > 0:
                    time.sleep(early_s)
    done = FeedProgress(sent, total, without_aircraft, time.monotonic() - began)
    if progress is not None:
        progress(done)
    return done


def _refuse_fed(topics: Topics, *, again: bool) -> None:
    names = (FLIGHTS_TOPIC, DEPARTURES_TOPIC)
    # Topics that were created a moment ago may not be known to every broker yet.
    deadline = time.monotonic() + _CREATED_WITHIN_S
    while len(there := topics.describe(names)) < len(names) and time.monotonic() < deadline:
        time.sleep(0.1)
    for name in names:
        if name not in there:
            raise TopicUnusable(
                f"The source topic {name} is not there.",
                action="Provision the processors first: materialise their changelogs, or run `holdfast demo`.",
                topic=name,
            )
        held = sum(topics.end_offsets(name, committed=False).values())
        if held and not again:
            raise FedBefore(
                f"The source topic {name} holds {held} records already; expected an empty topic.",
                action="Set `again` to count every flight once more, or start over with an empty home folder.",
                topic=name,
                records=held,
            )
