"""The time partitions of snapshots: windows of an hour or a day, the one that is running included."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from holdfast.infra.settings import SnapshotSettings

WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class Window:
    """One time partition; ``end`` is its end in seconds since 1970."""

    key: str
    end: float

    def is_current(self, now: float) -> bool:
        """Whether it has not ended."""
        return self.end > now


def snapshot_partitions(settings: SnapshotSettings) -> dg.TimeWindowPartitionsDefinition:
    """The partitions of every snapshot asset."""
    start = datetime(settings.since.year, settings.since.month, settings.since.day, tzinfo=UTC)
    kind = dg.HourlyPartitionsDefinition if settings.every == "hour" else dg.DailyPartitionsDefinition
    return kind(start_date=start, timezone="UTC", end_offset=1)


def snapshot_freshness(settings: SnapshotSettings) -> dg.FreshnessPolicy:
    """Published in every window: late after one and a half, failed after two and a half."""
    window = WINDOWS[settings.every]
    return dg.FreshnessPolicy.time_window(fail_window=window * 2.5, warn_window=window * 1.5)


def current_key(partitions: dg.TimeWindowPartitionsDefinition, now: datetime | None = None) -> str:
    """The partition that is running."""
    moment = (now or datetime.now(UTC)).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return moment.strftime(partitions.fmt)


def windows(partitions: dg.TimeWindowPartitionsDefinition, keys: Sequence[str]) -> list[Window]:
    """The windows of some partitions, in order of time."""
    found = [Window(key, partitions.time_window_for_partition_key(key).end.timestamp()) for key in keys]
    return sorted(found, key=lambda window: window.end)
