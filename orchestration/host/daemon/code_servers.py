"""The code server of Dagster's daemon, which stays until its code changes.

Dagster's daemon starts a new code server each minute, and lets the former one end: 5 to 8 seconds of CPU each time, for
ever. This one is replaced when it ended, when a file of the project changed, and once an hour.

Invariants:
    - A code server that ended is started again within seconds, alone: recovery waits for no import of the project. One
      that ends soon after each start is started again less and less often, down to once a minute.
    - An edit is noticed within seconds. Code servers that run, or that could not load their code, are replaced
      together: not within half a minute after their start, and without an edit not within a minute.
    - A code server runs until another one takes its place. One that does not start replaces none, as on a starved
      machine.
    - Code servers that the daemon did not start, which a workspace names by their address, are left to Dagster.
    - A replaced code server ends when its runs have ended.
"""

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.remote_origin import CodeLocationOrigin
from dagster._core.remote_representation.code_location import CodeLocation, GrpcServerCodeLocation
from dagster._core.remote_representation.grpc_server_registry import (
    ErrorRegistryEntry,
    GrpcServerRegistry,
    ServerRegistryEntry,
)
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.workspace import CodeLocationEntry
from dagster._daemon.controller import RELOAD_WORKSPACE_INTERVAL, DagsterDaemonController
from dagster._time import get_current_timestamp

from holdfast.orchestration.host.daemon.loaded_code import LoadedCode

log = structlog.get_logger("daemon")

#: A code server is replaced after this time also without a change, seconds: packages may have been installed.
AGE_MAX_S = 3600.0
#: No code server that runs is replaced within this time after its start without an edit, seconds: Dagster's own
#: interval.
AGE_MIN_S = float(RELOAD_WORKSPACE_INTERVAL)
#: The same after an edit: an import that is broken now is told within a minute.
EDITED_MIN_S = 30.0
#: A code server that ended is started again at once. If the next one ends, too, it is started again at this age,
#: seconds, and the one after it at twice this age, up to `AGE_MIN_S`, until one lives that long.
ENDED_AGAIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """One code server as the daemon sees it.

    ``error`` is why it, or its definitions, could not be loaded, and ``ended`` is how it ended after it was loaded.
    """

    age_s: float
    error: str | None = None
    ended: str | None = None
    location: str = ""


def to_start(servers: Iterable[Server], early: Mapping[str, int]) -> list[Server]:
    """The code servers that ended and are started again now.

    Args:
        servers: All of them.
        early: Location -> how often it was started again since one lived for ``AGE_MIN_S``.
    """
    return [
        each for each in servers if each.ended is not None and each.age_s >= _patience_s(early.get(each.location, 0))
    ]


def _patience_s(early: int) -> float:
    """The age at which a code server that ended is started again, seconds."""
    return min(AGE_MIN_S, ENDED_AGAIN_S * 2.0 ** (early - 1)) if early else 0.0


def outdated(servers: Iterable[Server], change: str | None) -> str | None:
    """Why all code servers must be replaced, as the end of a log line; None when they stay.

    ``change`` is what changed in the code since they were started.
    """
    found = list(servers)
    ages_s = [each.age_s for each in found]
    if not found or min(ages_s) < EDITED_MIN_S:
        return None
    if change is not None:
        return change
    if min(ages_s) < AGE_MIN_S:
        return None
    failed = next((each.error for each in found if each.error is not None), None)
    if failed is not None:
        return f"it could not load its definitions: {failed}"
    return f"it is {max(ages_s):.0f} s old" if max(ages_s) > AGE_MAX_S else None


class KeptLocations(WorkspaceProcessContext):
    """The code locations of the daemon."""

    def put_back(self, name: str, entry: CodeLocationEntry) -> None:
        """Use a former entry of a location again."""
        with self._lock:
            self._current_workspace = self._current_workspace.with_code_location(name, entry)


class KeptCodeServers(GrpcServerRegistry):
    """The code servers that the daemon started."""

    def runs(self, origin: CodeLocationOrigin) -> bool:
        """Whether the newest code server of a location was started and runs."""
        with self._lock:
            entry = self._active_entries.get(origin.get_id())
        return isinstance(entry, ServerRegistryEntry) and entry.process.server_process.poll() is None

    def servers(self, now: float, locations: Mapping[str, CodeLocationEntry]) -> list[Server]:
        """The present ones; ``locations`` are the workspace's, by the id of their origin."""
        with self._lock:
            entries = dict(self._active_entries)
        return [_server(entry, now, locations[origin]) for origin, entry in entries.items() if origin in locations]


def _server(entry: ServerRegistryEntry | ErrorRegistryEntry, now: float, location: CodeLocationEntry) -> Server:
    age_s, name = now - entry.creation_timestamp, location.origin.location_name
    if isinstance(entry, ErrorRegistryEntry):
        return Server(age_s, error=entry.error.message.strip(), location=name)
    code = entry.process.server_process.poll()
    if code is not None:
        return Server(age_s, ended=_end_of(code), location=name)
    failed = None if location.load_error is None else location.load_error.message.strip()
    return Server(age_s, error=failed, location=name)


def _end_of(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"exit code {code}"


def _answers(location: CodeLocation) -> bool:
    """Whether the code server of a location answers."""
    try:
        return isinstance(location, GrpcServerCodeLocation) and bool(location.client.ping(""))
    except DagsterUserCodeUnreachableError:
        return False


class PatientController(DagsterDaemonController):
    """Dagster's daemon, which refreshes its workspace when there is something to refresh.

    ``look`` returns the code that a code server would load now, and ``loaded`` is what it was before they were started.
    ``tell`` gets the error of each code location that does not load, whenever they change.
    """

    def __init__(
        self,
        workspace: KeptLocations,
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
        self._early: dict[str, int] = {}
        self._loaded = loaded
        super().__init__(workspace, daemons, grpc_server_registry=servers, **of_dagster)

    def check_workspace_freshness(self, last_workspace_update_time: float) -> float:
        """Refresh the workspace if its code servers are outdated; returns when the workspace was last known fresh."""
        now, seen = get_current_timestamp(), self._seen()
        entries = self._workspace.get_current_workspace().code_location_entries
        servers = self._servers.servers(now, {each.origin.get_id(): each for each in entries.values()})
        errors = {each.location: each.error for each in servers if each.error is not None}
        errors |= {name: each.load_error.to_string().strip() for name, each in entries.items() if each.load_error}
        if errors != self._told:
            self._tell(errors)
            self._told = errors
        if not servers:
            return super().check_workspace_freshness(last_workspace_update_time)
        for each in servers:
            if each.ended is None and each.age_s >= AGE_MIN_S:
                self._early.pop(each.location, None)
        ended = to_start(servers, self._early)
        for each in ended:
            log.warning("code_server.ended", location=each.location, how=each.ended, age_s=round(each.age_s, 1))
            self._early[each.location] = self._early.get(each.location, 0) + 1
            self._replace(each.location)
        if ended:
            return now
        why = outdated(servers, seen.change_since(self._loaded))
        if why is None:
            return now
        log.info("code_server.replaced", reason=why)
        self._loaded = seen
        for each in servers:
            self._replace(each.location)
        return now

    def _replace(self, name: str) -> None:
        """Start another code server for one location; the former one stays if that one does not start."""
        former = self._workspace.get_current_workspace().code_location_entries[name]
        self._workspace.reload_code_location(name)
        if former.code_location is None:
            return
        if not self._servers.runs(former.origin) and _answers(former.code_location):
            log.error("code_server.not_started", location=name)
            self._workspace.put_back(name, former)
        else:
            former.code_location.cleanup()  # else its heartbeats go on

    def _seen(self) -> LoadedCode:
        """The code now; an error of the disk, which ends no daemon, counts as no change."""
        try:
            return self._look()
        except OSError as failed:
            log.warning("code.not_read", reason=str(failed))
            return self._loaded
