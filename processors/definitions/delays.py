"""delays: hourly delays of each airport of origin, from flights keyed by origin.

An hourly window contains the flights that departed in it, because event time is the actual departure. The feed is in
the order of the timetable. So the message of a flight that departs 21 hours late arrives 21 hours before its event
time.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.infra.sample_data.flights import left, left_ms
from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import Count, Max, Mean, Sum
from holdfast.processors.engine.steps.topic import TopicConfig

HOUR = timedelta(hours=1)
#: Maximum lateness of a flight: more than the greatest delay of a departure (22 hours), so that no flight is too late.
GRACE = timedelta(hours=24)
#: Retention of an hourly window in the store after its end, so that the flights of a year can be queried.
KEPT = timedelta(days=400)

application = Application(
    consumer_group="delays",
    auto_offset_reset="earliest",
    dead_letter_topic="delays-dead-letters",
    # A commit every two seconds is frequent enough for windows of hours and days, and costs less than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per airport and hour: departures, their total, mean and worst delay; each hour is sent once, "
    "when it is over.",
    owners=("team:network-planning",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
origins = application.topic("origins", config=_layout)
delays_closed = application.topic("delays-closed", config=_layout)

sdf = application.dataframe(origins)
sdf = sdf.filter(left)
sdf = sdf.set_timestamp(left_ms)
hours = sdf.tumbling_window(HOUR, grace_ms=GRACE, name="hours", retention=KEPT).agg(
    departures=Count(),
    delay=Sum("dep_delay"),
    mean_delay=Mean("dep_delay"),
    worst_delay=Max("dep_delay"),
)
sdf = hours.final(closing_strategy="partition").to_topic(delays_closed)
