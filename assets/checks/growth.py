"""The external asset `operations/home`, and its check, which tests whether the disks have enough free space.

Invariants:
    - The check changes nothing. The job `upkeep` deletes old data, and updates the check every hour.
"""

from collections.abc import Sequence

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.pages.metadata import docs, table
from holdfast.infra.settings import Settings, load_settings
from holdfast.processors.lifecycle.health.growth import Used, judge_room, measure, owners

HAS_ROOM = "has_room"
_MIB = 1 << 20
_COLUMNS = ("owner", "mib", "what")


def home_asset(owners: Sequence[str] = ()) -> dg.AssetSpec:
    """The Dagster asset that represents the files of this installation."""
    return dg.AssetSpec(
        keys.home_key(),
        description="The files of this installation on this machine: Dagster's events, logs, state, copies, tables.",
        group_name=keys.OPERATIONS,
        owners=list(owners),
        kinds={"file"},
        tags=keys.tags(keys.OPERATIONS),
        metadata=docs("operations.md"),
    )


def room_check() -> dg.AssetChecksDefinition:
    """The check `has_room`, which fails if a disk has too little free space."""

    @dg.asset_check(
        asset=keys.home_key(),
        name=HAS_ROOM,
        description="Every disk that this installation writes to has its free part. Names the largest owner.",
    )
    def has_room() -> dg.AssetCheckResult:
        return room_result(load_settings()).result()

    return has_room


def room_result(settings: Settings) -> CheckResult:
    """Measures the files of the installation now, and returns the result of the check ``has_room``."""
    used = measure(owners(settings))
    verdict = judge_room(used, settings.upkeep.room_min_percent)
    return CheckResult(
        keys.home_key(),
        HAS_ROOM,
        verdict.passed,
        verdict.sentence,
        expected=f"at least {settings.upkeep.room_min_percent:g} % free (`HOLDFAST_UPKEEP__ROOM_MIN_PERCENT`)",
        action=verdict.action,
        metadata={
            "free_percent": round(verdict.free_percent, 2),
            "home_mib": round(sum(each.size_bytes for each in used) / _MIB, 3),
            "owners": table(_rows(used), _COLUMNS),
        },
    )


def _rows(used: Sequence[Used]) -> list[dict[str, str | float]]:
    return [
        {"owner": each.owner.name, "mib": round(each.size_bytes / _MIB, 3), "what": each.owner.what} for each in used
    ]
