"""Writes marks, and detects a registry (database of deployments) that was replaced by an older backup.

A mark is a file with a copy of a processor's deployment row in the registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.infra.database.records import Deployment
from holdfast.infra.deploy.marks import Mark, read_mark, write_mark
from holdfast.infra.log import get_logger
from holdfast.infra.paths import Paths
from holdfast.processors.lifecycle.plans.facts.behind import Behind, Recorded, judge

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry
from holdfast.processors.lifecycle.ports import World

log = get_logger(__name__)


def keep_mark(registry: Registry, paths: Paths, processor: str) -> None:
    """Copy the record of a processor's deployment from Holdfast's registry to a file (its mark).

    A failed write raises no error; it is only logged.
    """
    found = registry.deployment(processor)
    if found is None:
        return
    release = registry.releases.of_version(processor, found.code_version)
    columns = None
    if release is not None:
        columns = {
            "release_id": release.release_id,
            "target": release.target,
            "folder": release.folder,
            "shape": dict(release.shape),
            "worked": release.worked_at is not None,
        }
    began_at = (found.updated_at if release is None else min(found.updated_at, release.made_at)).timestamp()
    mark = Mark(found.generation, found.code_version, found.slots, found.desired, columns, began_at)
    try:
        write_mark(paths, processor, mark)
    except OSError as failed:
        log.warning("deployment.not_marked", processor=processor, reason=str(failed))


def began(paths: Paths, processors: Iterable[str]) -> datetime | None:
    """The earliest time of a deployment that the marks of these processors record; None if no mark has a time.

    A mark is a file with a copy of a deployment's row in Holdfast's registry.
    """
    marks = [read_mark(paths, each) for each in processors]
    moments = [each.began_at for each in marks if each is not None and each.began_at is not None]
    return datetime.fromtimestamp(min(moments), UTC) if moments else None


def behind(processor: str, world: World) -> Behind | None:
    """Returns a deployment that Holdfast's registry lacks, but that a mark or the changelogs record; otherwise None.

    A mark is a file with a copy of a deployment's row in the registry.

    Raises:
        HoldfastError: The registry does not answer, or Kafka does not answer while changelogs are read.
    """
    return judged(processor, world.registry.deployment(processor), world)


def judged(processor: str, known: Deployment | None, world: World) -> Behind | None:
    """Returns a deployment that Holdfast's registry lacks, as ``behind`` does; otherwise None.

    Only if ``known``, the deployment that the caller has just read from the registry, seems outdated, the registry is
    read again.
    """
    mark, logged = read_mark(world.paths, processor), None if known is None else world.logged(processor)
    seen = None if logged is None else Recorded(*logged)
    if judge(processor, _recorded(known), mark, seen) is None:
        return None
    # Read Holdfast's registry again, because a command may have recorded a deployment after ``known`` was read.
    # Commands write the registry first, then the mark (a file with a copy of the row).
    return judge(processor, _recorded(world.registry.deployment(processor)), mark, seen)


def _recorded(known: Deployment | None) -> Recorded | None:
    return None if known is None else Recorded(known.generation, known.code_version, known.desired)
