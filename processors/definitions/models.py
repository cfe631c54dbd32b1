"""models: long delays of each aircraft model, from flights keyed by tail number, and a table of aircraft.

Each departure that is at least an hour late is joined with its aircraft, and grouped by the aircraft's model.
"""

from __future__ import annotations

from typing import Any, TypedDict

from holdfast.infra.sample_data.flights import Flight, is_long_delay
from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import Count, Max, Mean, Sum
from holdfast.processors.engine.steps.topic import TopicConfig

#: The model name for an aircraft that is not in the table; a sixth of the flights have such a tail number.
UNKNOWN = "unknown"

application = Application(
    consumer_group="models",
    auto_offset_reset="earliest",
    dead_letter_topic="models-dead-letters",
    # Few messages change the state, so a commit every two seconds is frequent enough, and cheaper than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per aircraft model: departures an hour late or more, their total, mean and worst delay, and their "
    "seats.",
    owners=("team:fleet-operations",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
flights = application.topic("flights", config=_layout)
planes = application.topic("planes", config=_layout)
models_updates = application.topic("models-updates", config=_layout)


class Model(TypedDict):
    """The types of result columns whose type cannot be inferred from the aggregation."""

    delay: int
    worst_delay: int
    seats: int


def with_model(flight: Flight, plane: dict[str, Any] | None) -> dict[str, Any]:
    """A departure with the model of its aircraft."""
    model, seats = (UNKNOWN, 0) if plane is None else (plane["model"], plane["seats"])
    return {"model": model, "seats": seats, "dep_delay": flight["dep_delay"]}


sdf = application.dataframe(flights)
sdf = sdf.filter(is_long_delay)
sdf = sdf.join_table(application.table(planes), how="left", on_merge=with_model)
sdf = sdf.group_by("model")
sdf = sdf.aggregate(
    flights=Count(),
    delay=Sum("dep_delay"),
    mean_delay=Mean("dep_delay"),
    worst_delay=Max("dep_delay"),
    seats=Sum("seats"),
    store="models",
    model=Model,
)
sdf = sdf.to_topic(models_updates)
