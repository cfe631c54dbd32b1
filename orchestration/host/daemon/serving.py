"""The command ``holdfast daemon``: Dagster's daemon with Dagster's options, and with long-lived code servers.

Dagster's own daemon starts a new code server each minute and ends the old one, which costs 5 to 8 seconds of CPU each
time. This daemon replaces a code server only if it ended, if it could not load its definitions, if a file of the
project changed, or after one hour (``code_servers``).

Invariants:
    - A code server runs until its replacement has started. If the replacement can't start, for example on an overloaded
      machine, the old code server is kept.
    - Code servers that the daemon did not start (a workspace can name their address) are not replaced here.
    - A replaced code server ends when its runs have ended.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import dagster as dg
import structlog
from dagster._core.remote_representation.grpc_server_registry import (
    ErrorRegistryEntry,
    GrpcServerRegistry,
    ServerRegistryEntry,
)
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.cli import _get_heartbeat_tolerance, run_command
from dagster._daemon.controller import DagsterDaemonController, create_daemons_from_instance
from dagster._grpc.constants import INCREASE_TIMEOUT_DAGSTER_YAML_MSG, GrpcServerCommand
from dagster._utils.interrupts import capture_interrupts
from dagster_shared.cli import WorkspaceOpts

from holdfast.infra.settings import Settings
from holdfast.orchestration.host.daemon.code_servers import Server, end_of, outdated, settled, to_start
from holdfast.orchestration.host.daemon.loaded_code import LoadedCode, current_settings, look
from holdfast.orchestration.host.local import WORKSPACE
from holdfast.orchestration.host.opening import code_locations, open_instance, options_of, write_logs
from holdfast.orchestration.project.unloaded import write_unloaded

log = structlog.get_logger("daemon")

#: Maximum number of requests that a code server answers in parallel: ticks of 16 sensors and 4 schedules
#: (`local.yaml`), and heartbeats. Dagster's default on two cores is six requests. With this default, six slow sensors
#: would block the heartbeats, and the code server would end.
ANSWERS_AT_ONCE = 40
#: A code server ends if it gets no heartbeat for this time, seconds. Dagster's default of 20 s is too short on an
#: overloaded machine.
HEARTBEAT_TTL_S = 60


def daemon_command(settings: Settings) -> click.Command:
    """The click command ``holdfast daemon``, with the same options as ``dagster-daemon run``."""
    return click.Command(
        "daemon",
        params=options_of(run_command),
        callback=lambda **options: _run(settings, options),
        help="Run Dagster's daemon: schedules, sensors and the queue of runs.",
    )


def _run(settings: Settings, options: dict[str, Any]) -> None:
    asked = WorkspaceOpts.extract_from_cli_options(options)
    workspace = asked if asked.specifies_target() else WorkspaceOpts(workspace=(str(WORKSPACE),))
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        stack.enter_context(capture_interrupts())
        instance = stack.enter_context(open_instance("holdfast daemon", temporary=False))
        controller = controller_of(stack, settings, instance, workspace, options)
        controller.check_daemon_loop()


def controller_of(
    stack: ExitStack,
    settings: Settings,
    instance: dg.DagsterInstance,
    workspace: WorkspaceOpts,
    options: dict[str, Any],
) -> "PatientController":
    """Create Dagster's daemon and its code servers, in the same way as Dagster's own command.

    The daemon and the code servers are ended when ``stack`` is closed.
    """
    servers = stack.enter_context(_servers(instance, options["code_server_log_level"]))
    daemons = [stack.enter_context(each) for each in create_daemons_from_instance(instance)]
    target = code_locations(workspace)
    looking = _Looking(settings, target, [Path(file) for file in workspace.workspace or ()])
    # The fingerprint of the code is computed before the code is loaded. So an edit during the load is noticed later.
    before = looking()
    context = stack.enter_context(KeptLocations(instance, target, grpc_server_registry=servers))
    write_logs(options["log_format"], options["log_level"])
    controller = PatientController(
        context,
        daemons,
        servers,
        looking,
        before,
        partial(write_unloaded, settings),
        heartbeat_tolerance_seconds=_get_heartbeat_tolerance(),  # type: ignore[no-untyped-call]
    )
    stack.enter_context(controller)
    return controller


class KeptLocations(WorkspaceProcessContext):
    """Dagster's workspace in the daemon. This class can also put the former code server of a location back."""

    def put_back(self, name: str, entry: Any) -> None:
        """Put ``entry``, an earlier entry of the code location ``name``, back into the workspace."""
        with self._lock:
            self._current_workspace = self._current_workspace.with_code_location(name, entry)


class KeptCodeServers(GrpcServerRegistry):
    """Dagster's registry of code servers that the daemon started; this class also reports their state."""

    def runs(self, origin: str) -> bool:
        """Whether the newest code server of a location has started and runs; ``origin`` is the location's origin id."""
        with self._lock:
            entry = self._active_entries.get(origin)
        return isinstance(entry, ServerRegistryEntry) and entry.process.server_process.poll() is None

    def servers(self, now: float, locations: Mapping[str, Any]) -> list[Server]:
        """The facts about the present code servers; ``locations`` maps an origin id to its workspace entry."""
        with self._lock:
            entries = dict(self._active_entries)
        return [_server(entry, now, locations[origin]) for origin, entry in entries.items() if origin in locations]


def _server(entry: ServerRegistryEntry | ErrorRegistryEntry, now: float, location: Any) -> Server:
    age_s, name = now - entry.creation_timestamp, location.origin.location_name
    if isinstance(entry, ErrorRegistryEntry):
        return Server(age_s, error=entry.error.message.strip(), location=name)
    code = entry.process.server_process.poll()
    if code is not None:
        return Server(age_s, ended=end_of(code), location=name)
    failed = None if location.load_error is None else location.load_error.message.strip()
    return Server(age_s, error=failed, location=name)


def _answers(location: Any) -> bool:
    """Whether the code server of a code location answers a request."""
    try:
        return bool(location.client.ping(""))
    except dg.DagsterError:
        return False


class PatientController(DagsterDaemonController):
    """Dagster's daemon, which replaces code servers only when needed, not each minute.

    ``look`` returns the fingerprint of the code that a code server would load now. ``loaded`` is the fingerprint from
    before the start of the code servers. When the errors of code locations change, ``tell`` gets location -> error.
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
        """Restart or replace code servers if needed. Dagster calls this method often.

        Returns the time at which the workspace was last known to be up to date, seconds since 1970.
        """
        now, seen = time.time(), self._seen()
        entries = self._workspace.get_current_workspace().code_location_entries
        servers = self._servers.servers(now, {each.origin.get_id(): each for each in entries.values()})
        errors = {each.location: each.error for each in servers if each.error is not None}
        errors |= {name: each.load_error.to_string().strip() for name, each in entries.items() if each.load_error}
        if errors != self._told:
            self._tell(errors)
            self._told = errors
        if not servers:
            return super().check_workspace_freshness(last_workspace_update_time)
        for name in settled(servers):
            self._early.pop(name, None)
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
        """Start a new code server for one code location; keep the former code server if the new one does not start."""
        former = self._workspace.get_current_workspace().code_location_entries[name]
        self._workspace.reload_code_location(name)
        if former.code_location is None:
            return
        if not self._servers.runs(former.origin.get_id()) and _answers(former.code_location):
            log.error("code_server.not_started", location=name)
            self._workspace.put_back(name, former)
        else:
            former.code_location.cleanup()  # Without heartbeats, the former code server ends.

    def _seen(self) -> LoadedCode:
        """Returns the fingerprint of the present code.

        If the code is unreadable, logs an error and returns the last value.
        """
        try:
            return self._look()
        except OSError as failed:
            log.warning("code.not_read", reason=str(failed))
            return self._loaded


class _Looking:
    """Callable that returns the present fingerprint of the code in settings and workspace.

    If settings or workspace are invalid now, their last valid versions are used.
    """

    def __init__(self, settings: Settings, target: Any, files: Sequence[Path]) -> None:
        self._settings, self._target, self._files = settings, target, tuple(files)
        self._origins: Sequence[Any] = ()

    def __call__(self) -> LoadedCode:
        self._settings = current_settings(self._settings)
        # The workspace file can be invalid while a user edits it. Then its last valid content is used.
        with suppress(Exception):
            self._origins = self._target.create_origins()
        loaded: list[Any] = []
        for each in self._origins:
            # A code location has no loadable target if the daemon did not start its code server.
            with suppress(dg.DagsterInvariantViolationError):
                loaded.append(each.loadable_target_origin)
        modules = [name for each in loaded for name in (each.module_name, each.package_name) if name]
        return look(
            self._settings, modules, [*self._files, *(Path(each.python_file) for each in loaded if each.python_file)]
        )


def _servers(instance: dg.DagsterInstance, log_level: str) -> KeptCodeServers:
    # The number of parallel requests is set by a variable, because Dagster's constructor has no argument for it.
    os.environ.setdefault("DAGSTER_GRPC_MAX_WORKERS", str(ANSWERS_AT_ONCE))
    # With PYTHONFAULTHANDLER, Python logs a traceback if a code server or a run crashes in C code.
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    return KeptCodeServers(
        instance_ref=instance.get_ref(),
        server_command=GrpcServerCommand.API_GRPC,
        heartbeat_ttl=HEARTBEAT_TTL_S,
        startup_timeout=instance.code_server_process_startup_timeout,
        additional_timeout_msg=INCREASE_TIMEOUT_DAGSTER_YAML_MSG,
        log_level=log_level,
        wait_for_processes_on_shutdown=instance.wait_for_local_code_server_processes_on_shutdown,
    )
