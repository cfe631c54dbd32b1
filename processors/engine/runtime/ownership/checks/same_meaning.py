"""Checks that the state of a task was written with the same keys as the steps of this version use.

For example, if ``group_by`` now uses a different key, old and new state must not be mixed. A deployment finds this by
comparing the new version with the old one, but a worker that is started by hand has no deployment. Each commit
therefore stores a description of the keys with the state. Before a task runs, its worker compares the description with
the steps. Old state without a description is accepted, and the next commit writes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.time.window_keys import clock_key
from holdfast.processors.engine.steps.meaning import differences, how_to_keep, keys_of
from holdfast.processors.engine.topology import StoreSpec, Topology

_log = structlog.get_logger("runtime.same_meaning")


def check_meaning(task: Task, topology: Topology, known: Mapping[str, Sequence[str]]) -> None:
    """Compare the stored descriptions of keys (``known``, by store) with the steps of this processor version.

    Raises:
        StateIncoherent: A store with data was made with another key, or has windows that no step reads.
    """
    store = task.store
    for each in topology.stores:
        if each.kind != "window" and each.name in task.states and store is not None:
            _check_no_windows(task.name, store, each)
    for name, lines in keys_of(topology).items():
        if store is None or name not in task.states:
            continue
        if name not in known and store.holds_data(name):
            _log.info("an earlier Holdfast did not record the keys of a store", task=task.name, store=name)
        changed = [each for each in differences(known.get(name, lines), lines) if each.is_key]
        if changed and store.holds_data(name):
            what = "; ".join(map(str, changed))
            raise StateIncoherent(
                f"Task {task.name}: the state of store {name} was made with other keys than this version has: {what}. "
                "Results would mix both.",
                action=f"Run the former version, or give that step another name: it then has a new store."
                f"{how_to_keep(changed)} To build all state again with these keys: stop all workers, and call "
                '`app.clear_state(rewind="earliest")`.',
                cause="bad-configuration",
                task=task.name,
                store=name,
                seen=what,
            )


def _check_no_windows(task: str, content: TaskStore, store: StoreSpec) -> None:
    """Raises StateIncoherent if a store contains windows but is no longer a window store.

    In this case, the results of the open windows would never be sent.
    """
    if content.get(store_prefix(store.name) + clock_key()) is not None:
        raise StateIncoherent(
            f"Task {task}: store {store.name} has windows that close with time, and this version makes a store of kind "
            f"{store.kind} of it: windows that are open would never be sent.",
            action="Run the former version and clear the store: "
            f"`holdfast apply clear PROCESSOR --store {store.name} --all`. Or deploy the new step with another store.",
            cause="bad-configuration",
            task=task,
            store=store.name,
            seen="window",
            expected=store.kind,
        )
