"""Starts the processes of runs by fork, from a process that has already imported what the runs need.

    code server of the location `recovery`
      └─ fork server: has imported Dagster and the jobs, has no threads and no connections
           ├─ process of a run
           └─ process of another run

Dagster's code server starts the process of each run with multiprocessing's method ``spawn``: a new interpreter imports
Dagster and the job. That is two thirds of the CPU time of a recovery run, 2 of 3 s, and several times as long on a busy
machine. With the method ``forkserver``, the imports are made once, before anything fails.

Invariants:
    - Only the code server of the location `recovery` does this. Its jobs import no module of the project, so a process
      that is forked later never runs older code of the project than a new interpreter would.
    - The location itself is not imported beforehand. A run therefore reads the settings that hold when it starts.
"""

# tidy: allow-crumb because it adapts Dagster's code server, as the other modules of this folder adapt its other parts
from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from multiprocessing import forkserver


def is_code_server() -> bool:
    """Whether this process was started by ``python -m dagster``, as Dagster starts its code servers."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == "dagster" and multiprocessing.parent_process() is None


def start_runs_by_fork(modules: Sequence[str]) -> None:
    """Let this process start its spawned processes by fork, from a process that has imported ``modules``.

    Dagster's code server takes multiprocessing's context ``spawn``, of which each process has one. Its class of
    processes is replaced by that of the context ``forkserver``. Queues and events of ``spawn`` work with both. Where
    the system has no fork, nothing changes.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    warm = multiprocessing.get_context("forkserver")
    warm.set_forkserver_preload(list(modules))
    vars(multiprocessing.get_context("spawn"))["Process"] = warm.Process
    forkserver.ensure_running()
