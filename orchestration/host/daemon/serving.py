"""Dagster's daemon as a command with Dagster's own options."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from dagster._cli.utils import get_instance_for_cli
from dagster._cli.workspace.cli_target import workspace_opts_to_load_target
from dagster._core.instance import DagsterInstance, InstanceRef
from dagster._core.remote_origin import CodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._core.workspace.load_target import WorkspaceLoadTarget
from dagster._daemon.cli import _get_heartbeat_tolerance, run_command
from dagster._daemon.controller import create_daemons_from_instance
from dagster._grpc.constants import INCREASE_TIMEOUT_DAGSTER_YAML_MSG, GrpcServerCommand
from dagster._serdes import deserialize_value
from dagster._utils.interrupts import capture_interrupts, setup_interrupt_handlers
from dagster._utils.log import configure_loggers
from dagster_shared.cli import WorkspaceOpts
from dagster_shared.ipc import interrupt_on_ipc_shutdown_message

from holdfast.infra.settings import Settings
from holdfast.orchestration.host.daemon.code_servers import KeptCodeServers, KeptLocations, PatientController
from holdfast.orchestration.host.daemon.loaded_code import LoadedCode, current_settings, look
from holdfast.orchestration.host.local import WORKSPACE
from holdfast.orchestration.project.unloaded import write_unloaded

#: How many requests a code server answers at once: ticks of 16 sensors and 4 schedules (`local.yaml`), and heartbeats.
#: By default these are six on two cores: six slow sensors keep the heartbeats waiting, and the code server ends.
ANSWERS_AT_ONCE = 40
#: A code server without heartbeats ends after this time, seconds. Dagster's 20 s are too few on a starved machine.
HEARTBEAT_TTL_S = 60


def daemon_command(settings: Settings) -> click.Command:
    """The command ``holdfast daemon``, with the options of ``dagster-daemon run``."""
    return click.Command(
        "daemon",
        params=run_command.params,
        callback=lambda **options: _run(settings, options),
        help="Run Dagster's daemon: schedules, sensors and the queue of runs.",
    )


def _run(settings: Settings, options: dict[str, Any]) -> None:
    asked = WorkspaceOpts.extract_from_cli_options(options)
    workspace = asked if asked.specifies_target() else WorkspaceOpts(workspace=(str(WORKSPACE),))
    setup_interrupt_handlers()
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        if options["shutdown_pipe"]:
            stack.enter_context(interrupt_on_ipc_shutdown_message(options["shutdown_pipe"]))
        stack.enter_context(capture_interrupts())
        reference = options["instance_ref"]
        instance = stack.enter_context(
            get_instance_for_cli(instance_ref=deserialize_value(reference, InstanceRef) if reference else None)
        )
        controller = controller_of(stack, settings, instance, workspace, options)
        controller.check_daemon_loop()


def controller_of(
    stack: ExitStack, settings: Settings, instance: DagsterInstance, workspace: WorkspaceOpts, options: dict[str, Any]
) -> PatientController:
    """Dagster's daemon with its code server, both ended with the stack; as Dagster's own command makes them."""
    servers = stack.enter_context(_servers(instance, options["code_server_log_level"]))
    daemons = [stack.enter_context(each) for each in create_daemons_from_instance(instance)]
    target = workspace_opts_to_load_target(workspace)
    looking = _Looking(settings, target, [Path(file) for file in workspace.workspace or ()])
    before = looking()  # an edit while the code is loaded counts as a change
    context = stack.enter_context(_context(instance, target, servers))
    configure_loggers(handler="default", formatter=options["log_format"], log_level=options["log_level"].upper())
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


class _Looking:
    """Looks at the code of settings and workspace as they are now, or as they last were valid."""

    def __init__(self, settings: Settings, target: WorkspaceLoadTarget, files: Sequence[Path]) -> None:
        self._settings, self._target, self._files = settings, target, tuple(files)
        self._origins: Sequence[CodeLocationOrigin] = ()

    def __call__(self) -> LoadedCode:
        self._settings = current_settings(self._settings)
        with suppress(Exception):  # the workspace's file is being edited
            self._origins = self._target.create_origins()
        loaded = [
            each.loadable_target_origin
            for each in self._origins
            if isinstance(each, ManagedGrpcPythonEnvCodeLocationOrigin)
        ]
        modules = [name for each in loaded for name in (each.module_name, each.package_name) if name]
        return look(
            self._settings, modules, [*self._files, *(Path(each.python_file) for each in loaded if each.python_file)]
        )


def _context(instance: DagsterInstance, target: WorkspaceLoadTarget, servers: KeptCodeServers) -> KeptLocations:
    return KeptLocations(instance, target, grpc_server_registry=servers)


def _servers(instance: DagsterInstance, log_level: str) -> KeptCodeServers:
    os.environ.setdefault("DAGSTER_GRPC_MAX_WORKERS", str(ANSWERS_AT_ONCE))  # no other way leads to its option
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a code server or run that dies in C says in the log where
    return KeptCodeServers(
        instance_ref=instance.get_ref(),
        server_command=GrpcServerCommand.API_GRPC,
        heartbeat_ttl=HEARTBEAT_TTL_S,
        startup_timeout=instance.code_server_process_startup_timeout,
        additional_timeout_msg=INCREASE_TIMEOUT_DAGSTER_YAML_MSG,
        log_level=log_level,
        wait_for_processes_on_shutdown=instance.wait_for_local_code_server_processes_on_shutdown,
    )
