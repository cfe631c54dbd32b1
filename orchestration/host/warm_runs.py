"""Starts the processes of runs by fork, from a process that has already imported what the runs need.

    code server of the location `recovery`
      └─ fork server: has imported Dagster and the jobs, has no threads and no connections
           ├─ process of a run
           └─ process of another run

Dagster's code server starts the process of each run with multiprocessing's method ``spawn``: a new interpreter imports
Dagster and the job. These imports take 2 of the 3 s of CPU of a recovery run; on a busy machine, they last several
times as long. With the method ``forkserver``, the imports are made once, before any processor fails.

Invariants:
    - Only the code server of the code location `recovery` starts runs by fork. Its jobs import no module of the
      project. So a forked process never runs older code of the project than a new interpreter would.
    - The fork server does not import the module of the code location, because this module reads the settings. Each run
      imports the module when it starts, and so reads the settings of that time.
"""

# tidy: allow-crumb because this module adapts a part of Dagster, and all modules that do so are in this folder
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
    """Make this code server start the processes of runs by fork, from a process that has imported ``modules``.

    Dagster creates these processes with multiprocessing's context ``spawn``, a single object in each Python process.
    This function replaces the context's class ``Process`` by the class of the context ``forkserver``. Queues and events
    of ``spawn`` work with both classes. If the system lacks ``forkserver``, nothing changes.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    warm = multiprocessing.get_context("forkserver")
    warm.set_forkserver_preload(list(modules))
    vars(multiprocessing.get_context("spawn"))["Process"] = warm.Process
    forkserver.ensure_running()
