"""The time partitions of snapshot assets: windows of an hour or a day, including the current one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from holdfast.infra.settings import SnapshotSettings

WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class Window:
    """One time partition, which is an hour or a day; ``end`` is in seconds since 1970."""

    key: str
    end: float

    def is_current(self, now: float) -> bool:
        """Whether the window is the current one, so that it has not ended yet."""
        return self.end > now


def snapshot_partitions(settings: SnapshotSettings, began: datetime | None = None) -> dg.TimeWindowPartitionsDefinition:
    """The hourly or daily partitions of every snapshot asset, in UTC.

    The settings can name the first partition. Otherwise, the first partition is the hour or day that contains the time
    ``began``, or the present hour or day if ``began`` is None.
    """
    since = settings.since
    if since is not None:
        start = datetime(since.year, since.month, since.day, tzinfo=UTC)
    else:
        moment = (began or datetime.now(UTC)).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        start = moment if settings.every == "hour" else moment.replace(hour=0)
    kind = dg.HourlyPartitionsDefinition if settings.every == "hour" else dg.DailyPartitionsDefinition
    return kind(start_date=start, timezone="UTC", end_offset=1)


def snapshot_freshness(settings: SnapshotSettings) -> dg.FreshnessPolicy:
    """Dagster's freshness policy: a warning after 1.5 time partitions without a snapshot, a failure after 2.5."""
    window = WINDOWS[settings.every]
    return dg.FreshnessPolicy.time_window(fail_window=window * 2.5, warn_window=window * 1.5)


def current_key(partitions: dg.TimeWindowPartitionsDefinition, now: datetime | None = None) -> str:
    """The Dagster partition key of the current window (hour or day)."""
    moment = (now or datetime.now(UTC)).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return moment.strftime(partitions.fmt)


def windows(partitions: dg.TimeWindowPartitionsDefinition, keys: Sequence[str]) -> list[Window]:
    """The windows of these partition keys, earliest first."""
    found = [Window(key, partitions.time_window_for_partition_key(key).end.timestamp()) for key in keys]
    return sorted(found, key=lambda window: window.end)
