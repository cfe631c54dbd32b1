"""Rotates large logs. Deletes archived orphans, exports of cleared keys, and files left by tests of new versions.

Invariants:
    - A copy in the archive is deleted only if the deletion of its original is complete, and if the settings have a
      maximum age.
    - A log file that a running program has open is truncated, not deleted.
"""

import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.infra.paths import Paths
from holdfast.infra.system.sizes import rotate
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans.facts.orphans import Archived
from holdfast.processors.proof.prover import PROOF

#: Age, in seconds, after which the folder of a proof (a test of a new version before its deploy) is deleted. A proof
#: ends much sooner.
PROOF_ENDED_S = 3_600.0


def rotate_logs(paths: Paths, max_mb: int) -> tuple[str, ...]:
    """Rotate the logs that grew beyond ``max_mb`` MiB and that no other program rotates; returns their names."""
    logs = [*paths.logs.glob("*.log"), *paths.kafka.glob("*.out"), *paths.spark.glob("*.log")]
    return tuple(log.name for log in sorted(logs) if rotate(log, max_mb << 20))


def copies_to_delete(copies: Iterable[Archived], days: float | None, now: datetime) -> tuple[Archived, ...]:
    """The copies whose originals were deleted more than ``days`` ago. Empty if ``days`` is None."""
    if days is None:
        return ()
    before = now - timedelta(days=days)
    return tuple(
        copy
        for copy in copies
        if copy.deletion is not None and copy.deletion.ended_at is not None and copy.deletion.ended_at < before
    )


def prune_archive(root: Path, days: float | None, now: datetime) -> int:
    """Delete copies of orphans (resources without an owner) older than ``days`` from the archive; returns their number.

    None deletes no copy.

    Raises:
        ArchiveBusy: Another process is archiving or deleting orphans.
        ArchiveFailed: The archive can't be read.
    """
    if days is None or not root.is_dir():
        return 0
    archive = Archive(root)
    with archive.held():
        old = copies_to_delete(archive.copies()[0], days, now)
        for copy in old:
            shutil.rmtree(copy.folder)
    return len(old)


def prune_exports(root: Path, days: float | None, now: datetime) -> int:
    """Delete the export files of cleared keys that are older than ``days``; returns their number.

    None deletes no file.
    """
    if days is None:
        return 0
    before = (now - timedelta(days=days)).timestamp()
    old = [path for path in root.rglob("*") if path.is_file() and path.lstat().st_mtime < before]
    for path in old:
        with suppress(OSError):
            path.unlink()
    return len(old)


def prune_proofs(root: Path) -> int:
    """Delete temporary files of killed proofs below ``root``, the folder of all releases; returns the number of proofs.

    A proof runs a new version on recent messages before it is deployed. The folder of a running proof is never deleted.
    It is younger than ``PROOF_ENDED_S``, because each version gets a new folder and must end within ``RUN_S``
    (``proof.prover``).
    """
    oldest = time.time() - PROOF_ENDED_S
    left = [path for path in root.glob(f"*/{PROOF}") if path.lstat().st_mtime < oldest]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def in_words(parts: Sequence[tuple[int, str]]) -> str:
    """Counts of deleted things as text, for example ``12 runs, 3 events``; counts of 0 are left out.

    The text is ``nothing`` if all counts are 0.
    """
    return ", ".join(f"{number:,} {what}" for number, what in parts if number) or "nothing"
