"""Measures the disk space of each kind of files on this machine, and judges whether the disk has enough free space.

In this module, an *owner* is a kind of files, for example logs or checkpoints.

Invariants:
    - Every file below the home folder belongs to exactly one owner. ``OTHER`` has the files of no other owner.
    - Each owner names the setting that limits its size, or the command that frees space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.settings import Settings
from holdfast.infra.system.sizes import Room, room_of, size_on_disk

OTHER = "other"
_GIB = 1 << 30
RUN_UPKEEP = "launch the job `upkeep` in Dagster"


@dataclass(frozen=True, slots=True)
class Owner:
    """A kind of files that use disk space, for example logs or checkpoints; ``action`` says how to free the space."""

    name: str
    what: str
    places: tuple[Path, ...]
    action: str


@dataclass(frozen=True, slots=True)
class Used:
    """A kind of files (``owner``) with its total size; ``room`` is the free space on the disk of its first folder."""

    owner: Owner
    size_bytes: int
    room: Room


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether every disk has enough free space; ``free_percent`` belongs to the disk with the least free space."""

    passed: bool
    sentence: str
    action: str
    free_percent: float


def owners(settings: Settings) -> tuple[Owner, ...]:
    """All kinds of files that use disk space on this machine, according to the settings."""
    paths, dagster = settings.paths, settings.paths.dagster
    prune = "HOLDFAST_UPKEEP__"
    found = [
        Owner(
            "dagster-events",
            "events and runs of Dagster",
            (dagster / "history",),
            f"lower `{prune}OBSERVATIONS_DAYS` or `{prune}RUNS_DAYS`, then {RUN_UPKEEP}",
        ),
        Owner(
            "dagster-ticks",
            "ticks of Dagster's sensors and schedules",
            (dagster / "schedules",),
            "lower `purge_after_days` under `retention` in `dagster.yaml`, then run `holdfast down` and `holdfast up`",
        ),
        Owner(
            "run-output",
            "output of runs and ticks",
            (dagster / "storage",),
            f"lower `{prune}RUNS_DAYS`, then {RUN_UPKEEP}",
        ),
        Owner(
            "logs",
            "logs of workers, supervisor and Dagster",
            (paths.logs, paths.supervisor),
            f"lower `{prune}LOG_MAX_MB`, then {RUN_UPKEEP}",
        ),
        Owner(
            "broker",
            "topics of the embedded broker, and its log",
            (paths.kafka,),
            "give source and output topics a shorter `retention.ms`",
        ),
        Owner(
            "state",
            "local state, and state that was set aside",
            (paths.state,),
            "run `holdfast plan clean`: it lists state that was set aside or has no processor",
        ),
        Owner(
            "checkpoints",
            "local checkpoints for snapshots; each worker keeps three",
            (paths.checkpoint_folders,),
            "run `holdfast plan clean`: it lists checkpoints without a processor",
        ),
        Owner(
            "releases",
            "copies of deployed code",
            (paths.all_releases,),
            f"lower `{prune}RELEASES`, then deploy the processor",
        ),
        Owner(
            "archive",
            "copies of deleted orphans",
            (settings.archive_folder,),
            f"set `{prune}ARCHIVE_DAYS`, then {RUN_UPKEEP}",
        ),
        Owner(
            "exports",
            "exports of cleared keys",
            (paths.all_exports,),
            f"set `{prune}EXPORTS_DAYS`, then {RUN_UPKEEP}",
        ),
        Owner("spark", "temporary files and log of Spark", (paths.spark,), RUN_UPKEEP),
        Owner("rehearsals", "scratch folders of rehearsals", (paths.rehearsals,), "run `holdfast rehearse`"),
    ]
    found += _stores(settings)
    return (*found, Owner(OTHER, "files of no other owner", (paths.home,), f"list the folder {paths.home}"))


def _stores(settings: Settings) -> list[Owner]:
    """Holdfast's registry, the checkpoint store and the warehouse, as kinds of files, if they are on this machine.

    Settings can place each of the three on another machine.
    """
    found = []
    if not settings.registry_url or settings.registry_url.startswith("sqlite:///"):
        file = Path(settings.registry.removeprefix("sqlite:///"))
        places = tuple(file.with_name(file.name + end) for end in ("", "-wal", "-shm"))
        action = f"lower `HOLDFAST_UPKEEP__REGISTRY_DAYS`, then {RUN_UPKEEP}"
        found.append(Owner("registry", "plans, applies and incidents", places, action))
    store = settings.checkpoint_store.removeprefix("file://")
    if "://" not in store:
        action = "run `holdfast plan clean`: it lists checkpoints without a processor"
        what = "stored checkpoints; two of each task"
        found.append(Owner("checkpoint-store", what, (Path(store),), action))
    tables = settings.warehouse_store.removeprefix("file://")
    places = (settings.paths.warehouse, *(() if "://" in tables else (Path(tables),)))
    action = "lower `HOLDFAST_MAINTENANCE__KEEP_VERSIONS_HOURS`, then launch the job `maintain_warehouse` in Dagster"
    return [*found, Owner("warehouse", "catalog and tables of the warehouse", places, action)]


def measure(parts: Sequence[Owner]) -> tuple[Used, ...]:
    """The total size of each kind of files (owner), largest first.

    If the folder of owner A is inside of the folder of owner B, its size counts only for A.
    """
    found = []
    for owner in parts:
        others = [place for each in parts if each is not owner for place in each.places if _within(place, owner)]
        found.append(Used(owner, size_on_disk(owner.places, without=others), room_of(owner.places[0])))
    return tuple(sorted(found, key=lambda used: -used.size_bytes))


def judge_room(used: Sequence[Used], min_percent: float) -> Verdict:
    """Whether every disk has at least ``min_percent`` of its space free.

    The sentence of the verdict names the kind of files that uses the most space on the disk with the least free space.
    """
    tightest = min(used, key=lambda each: each.room.free_percent).room
    on_it = [each for each in used if each.room == tightest]
    largest = max(on_it, key=lambda each: each.size_bytes)
    free = f"{tightest.free_bytes / _GIB:.1f} GiB of {tightest.total_bytes / _GIB:.1f} GiB"
    together = sum(each.size_bytes for each in on_it) / _GIB
    sentence = (
        f"The disk of {largest.owner.places[0].parent} has {free} free ({tightest.free_percent:.1f} %). "
        f"Of {together:.2f} GiB of this installation, {largest.owner.name} has {largest.size_bytes / _GIB:.2f} GiB "
        f"({largest.owner.what})."
    )
    action = f"{largest.owner.action[0].upper()}{largest.owner.action[1:]}. `holdfast status --sizes` lists all owners."
    return Verdict(tightest.free_percent >= min_percent, sentence, action, tightest.free_percent)


def _within(place: Path, owner: Owner) -> bool:
    return any(place != other and place.is_relative_to(other) for other in owner.places)
