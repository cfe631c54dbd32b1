"""delays: the delays of each airport of origin by the hour, from flights keyed by origin.

An hour contains the flights that departed in it. Event time is the departure itself. The feed is in the order of the
timetable, so a flight that departs 21 hours late arrives 21 hours too early.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.infra.sample_data.flights import left, left_ms
from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import Count, Max, Mean, Sum
from holdfast.processors.engine.steps.topic import TopicConfig

HOUR = timedelta(hours=1)
#: Longer than the greatest delay of a departure, which is 22 hours: no flight is late.
GRACE = timedelta(hours=24)
#: How long an hour stays in the store after its end: the flights of a year can be queried.
KEPT = timedelta(days=400)

application = Application(
    consumer_group="delays",
    auto_offset_reset="earliest",
    dead_letter_topic="delays-dead-letters",
    # Windows are open for hours and days: a commit each two seconds is soon enough, and costs less.
    commit_interval=2.0,
    # The partitions of a killed worker are free after this session timeout; 6 s is the broker's minimum. An idle worker
    # polls for messages four times a second instead of twenty, because seconds of delay are fine here.
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
