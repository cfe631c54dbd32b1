"""The change of workers that an operator tells, as a worker's loop reads it: by client ids in place of slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.infra.deploy.changes import read_change
from holdfast.infra.paths import Paths
from holdfast.processors.engine.changelog.names import transactional_id
from holdfast.processors.engine.runtime.membership import Change, ChangeSource, no_change
from holdfast.processors.engine.state.folder import StateFolder


def change_for(paths: Paths, state_dir: Path, group: str, *, told: bool) -> ChangeSource:
    """Reads the change of this machine's workers of a processor.

    A worker that has not made its state folder yet has no client id: it is left out until it has one. ``told`` is false
    for a worker that no operator runs: no change concerns it.
    """
    if not told:
        return no_change

    def clients(slots: Sequence[str]) -> frozenset[str]:
        ids = {slot: StateFolder.id_of(state_dir / group / slot) for slot in slots}
        return frozenset(transactional_id(group, ids[slot], slot) for slot in slots if ids[slot])

    def change() -> Change | None:
        found = read_change(paths, group)
        if found is None:
            return None
        return Change(clients(tuple(dict.fromkeys((*found.before, *found.slots)))), clients(found.slots), found.join)

    return change
