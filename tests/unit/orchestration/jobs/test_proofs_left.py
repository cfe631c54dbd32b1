"""The folder of a killed proof (a trial run before a deploy) is deleted.

Folders of running proofs and of releases are kept.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.infra.paths import Paths
from holdfast.orchestration.jobs.old_files import PROOF_ENDED_S, prune_proofs
from holdfast.processors.proof.prover import LAST_WORDS_S, PROOF, RUN_S


def test_the_folder_of_a_killed_proof_is_pruned_and_no_other(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    killed, runs, release = (
        paths.releases("orders") / PROOF,
        paths.releases("routes") / PROOF,
        paths.releases("orders") / "v1-0a1b2c3d",
    )
    for folder in (killed, runs, release):
        folder.mkdir(parents=True)
        (folder / "written").touch()
    long_ago = time.time() - PROOF_ENDED_S - 1
    for folder in (killed, release):
        os.utime(folder, (long_ago, long_ago))
    assert prune_proofs(paths.all_releases) == 1
    assert [folder.exists() for folder in (killed, runs, release)] == [False, True, True]
    assert prune_proofs(paths.all_releases) == 0
    assert prune_proofs(tmp_path / "nowhere") == 0


def test_a_proof_ends_long_before_its_folder_is_left_over() -> None:
    assert 2 * (RUN_S + LAST_WORDS_S) < PROOF_ENDED_S
