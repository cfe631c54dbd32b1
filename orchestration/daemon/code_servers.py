"""The code server of Dagster's daemon, which stays until its code changes.

Dagster's daemon starts a new code server each minute, and lets the former one end: 5 to 8 seconds of CPU each time, for
ever. This one is replaced when it ended, when a file of the project changed, and once an hour.

Invariants:
    - An edit, or the end of a code server, is noticed within seconds. No code server is replaced within a minute after
      its start, also one that could not load its code.
    - Code servers that the daemon did not start, which a workspace names by their address, are left to Dagster.
    - A replaced code server ends when its runs have ended.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from dagster._core.remote_representation.grpc_server_registry import (
    ErrorRegistryEntry,
    GrpcServerRegistry,
    ServerRegistryEntry,
)
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.controller import RELOAD_WORKSPACE_INTERVAL, DagsterDaemonController
from dagster._time import get_current_timestamp

from holdfast.orchestration.daemon.loaded_code import LoadedCode

log = structlog.get_logger("daemon")

#: A code server is replaced after this time also without a change, seconds: packages may have been installed.
AGE_MAX_S = 3600.0
#: No code server is replaced within this time after its start, seconds: Dagster's own interval.
AGE_MIN_S = float(RELOAD_WORKSPACE_INTERVAL)


@dataclass(frozen=True, slots=True)
class Server:
    """One code server as the daemon sees it; ``error`` is why it, or its definitions, could not be loaded."""

    age_s: float
    runs: bool
    error: str | None = None


def outdated(servers: Iterable[Server], change: str | None) -> str | None:
    """Why the code servers must be replaced, as the end of a log line; None when they stay.

    ``change`` is what changed in the code since they were started.
    """
    found = list(servers)
    ages_s = [each.age_s for each in found]
    if not found or min(ages_s) < AGE_MIN_S:
        return None
    if any(not each.runs and each.error is None for each in found):
        return "it ended"
    if change is not None:
        return change
    failed = next((each.error for each in found if each.error is not None), None)
    if failed is not None:
        return f"it could not load its definitions: {failed}"
    return f"it is {max(ages_s):.0f} s old" if max(ages_s) > AGE_MAX_S else None


class KeptCodeServers(GrpcServerRegistry):
    """The code servers that the daemon started."""

    def servers(self, now: float, errors: Iterable[str]) -> list[Server]:
        """The present ones; ``errors`` are those of locations whose code server answers."""
        with self._lock:
            entries = list(self._active_entries.values())
        failed = next(iter(errors), None)
        return [_server(entry, now, failed) for entry in entries]


def _server(entry: ServerRegistryEntry | ErrorRegistryEntry, now: float, failed: str | None) -> Server:
    age_s = now - entry.creation_timestamp
    if isinstance(entry, ErrorRegistryEntry):
        return Server(age_s, runs=False, error=entry.error.message.strip())
    return Server(age_s, runs=entry.process.server_process.poll() is None, error=failed)


class PatientController(DagsterDaemonController):
    """Dagster's daemon, which refreshes its workspace when there is something to refresh.

    ``look`` returns the code that a code server would load now, and ``loaded`` is what it was before they were started.
    ``tell`` gets the error of each code location that does not load, whenever they change.
    """

    def __init__(
        self,
        workspace: WorkspaceProcessContext,
        daemons: Any,
        servers: KeptCodeServers,
        look: Callable[[], LoadedCode],
        loaded: LoadedCode,
        tell: Callable[[dict[str, str]], object] = lambda errors: None,
        **of_dagster: Any,
    ) -> None:
        self._servers, self._look, self._workspace = servers, look, workspace
        self._tell = tell
        self._told: dict[str, str] | None = None
        self._loaded = loaded
        super().__init__(workspace, daemons, grpc_server_registry=servers, **of_dagster)

    def check_workspace_freshness(self, last_workspace_update_time: float) -> float:
        """Refresh the workspace if its code servers are outdated; returns when the workspace was last known fresh."""
        now, seen = get_current_timestamp(), self._seen()
        entries = self._workspace.get_current_workspace().code_location_entries.values()
        failed = {each.origin.location_name: each.load_error for each in entries if each.load_error is not None}
        errors = {name: error.to_string().strip() for name, error in failed.items()}
        if errors != self._told:
            self._tell(errors)
            self._told = errors
        servers = self._servers.servers(now, [error.message.strip() for error in failed.values()])
        if not servers:
            return super().check_workspace_freshness(last_workspace_update_time)
        why = outdated(servers, seen.change_since(self._loaded))
        if why is None:
            return now
        log.info("code_server.replaced", reason=why)
        self._loaded = seen
        # Dagster refreshes what is older than its interval
        return super().check_workspace_freshness(min(last_workspace_update_time, now - RELOAD_WORKSPACE_INTERVAL - 1.0))

    def _seen(self) -> LoadedCode:
        """The code now; an error of the disk, which ends no daemon, counts as no change."""
        try:
            return self._look()
        except OSError as failed:
            log.warning("code.not_read", reason=str(failed))
            return self._loaded
