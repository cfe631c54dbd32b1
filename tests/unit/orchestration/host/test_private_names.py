"""Lists each private name of Dagster that Holdfast imports, the feature that needs it, and its required shape.

If a new version of Dagster removes or changes such a name, a test here fails and shows the name.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.events import EVENT_TYPE_TO_PIPELINE_RUN_STATUS
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._core.storage.tags import GRPC_INFO_TAG, MAX_RUNTIME_SECONDS_TAG, REPORTING_USER_TAG, USER_TAG
from dagster._daemon.controller import RELOAD_WORKSPACE_INTERVAL
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage
from dagster_webserver.webserver import DagsterWebserver

from holdfast.assets import launched_by
from holdfast.orchestration.host import launches, old_events, run_launcher, run_time_limits
from holdfast.orchestration.host.daemon import code_servers
from holdfast.orchestration.host.front import signed_requests

HOST = Path(run_launcher.__file__).parent

#: A required shape: a function that gets the object behind a private name. It returns the parts that the object lacks.
Shape = Callable[[Any], set[str]]


def takes(*parameters: str) -> Shape:
    """The shape of a function or class that takes these parameters."""
    return lambda found: set(parameters) - set(inspect.signature(found).parameters)


def has(*members: str, keeps: str = "") -> Shape:
    """The shape of a class with these methods and properties (``members``).

    The code of the class also sets the attributes in ``keeps`` on ``self``.
    """

    def lacks(found: Any) -> set[str]:
        source = inspect.getsource(found)
        return {each for each in members if not hasattr(found, each)} | {
            each for each in keeps.split() if f"self.{each}" not in source
        }

    return lacks


def columns(*names: str) -> Shape:
    """The shape of a table that has these columns."""
    return lambda found: set(names) - set(found.c.keys())


def options(*names: str) -> Shape:
    """The shape of a command that has these options."""
    return lambda found: set(names) - {each.name for each in found.params}


def an_error(found: Any) -> set[str]:
    """The shape of an error class that derives from ``DagsterError``."""
    return set() if issubclass(found, dg.DagsterError) else {"DagsterError above it"}


def words(found: Any) -> set[str]:
    """The shape of a string."""
    return set() if isinstance(found, str) else {"a text"}


def both(*shapes: Shape) -> Shape:
    """The shape of an object that must have all of these shapes."""
    return lambda found: {each for shape in shapes for each in shape(found)}


STAYS = "the daemon's code server stays, and one that ended is started again within seconds"
STARTS = "`holdfast daemon` and `holdfast webserver` open what Dagster's commands open, with their options"
SIGNED = "runs and events carry the name of the person who asked"
ENDS = "a run ends with its process, and is launched once"
BOUNDED = "events and runs are deleted when they are old"
FORMER = "a dagster.yaml of a former version opens; the demo's runs share a process"

#: By module and private name: the feature that needs the name, and the shape that the name must have.
NAMES: dict[str, dict[str, tuple[str, Shape]]] = {
    "dagster._cli.utils": {
        "get_instance_for_cli": (STARTS, takes("logger")),
        "get_possibly_temporary_instance_for_cli": (STARTS, takes("cli_command", "logger")),
    },
    "dagster._cli.workspace.cli_target": {"workspace_opts_to_load_target": (STARTS, takes("opts"))},
    "dagster._core.instance": {"InstanceRef": (FORMER, has("config_defaults"))},
    "dagster._utils.log": {"configure_loggers": (STARTS, takes("formatter", "log_level"))},
    "dagster._core.remote_representation.grpc_server_registry": {
        "GrpcServerRegistry": (
            STAYS,
            both(
                takes("instance_ref", "server_command", "heartbeat_ttl", "startup_timeout", "additional_timeout_msg"),
                takes("log_level", "wait_for_processes_on_shutdown"),
                has(keeps="_lock _active_entries"),
            ),
        ),
        "ServerRegistryEntry": (STAYS, takes("process", "creation_timestamp")),
        "ErrorRegistryEntry": (STAYS, takes("error", "creation_timestamp")),
    },
    "dagster._core.workspace.context": {
        "WorkspaceProcessContext": (
            f"{STAYS}; {SIGNED}",
            both(
                takes("instance", "workspace_load_target", "version", "read_only", "grpc_server_registry"),
                takes("code_server_log_level"),
                has("create_request_context", "reload_code_location", "get_current_workspace"),
                has(keeps="_lock _current_workspace"),
            ),
        ),
        "WorkspaceRequestContext": (
            SIGNED,
            both(
                takes("instance", "current_workspace", "process_context", "version", "source", "read_only"),
                has("get_viewer_tags", "get_reporting_user_tags"),
            ),
        ),
    },
    "dagster._daemon.cli": {
        "run_command": (STARTS, options("code_server_log_level", "log_level", "log_format", "workspace")),
        "_get_heartbeat_tolerance": (STARTS, takes()),
    },
    "dagster._daemon.controller": {
        "DagsterDaemonController": (
            STAYS,
            both(
                takes("workspace_process_context", "daemons", "grpc_server_registry", "heartbeat_tolerance_seconds"),
                has("check_workspace_freshness", "check_daemon_loop"),
            ),
        ),
        "create_daemons_from_instance": (STAYS, takes("instance")),
    },
    "dagster._grpc.constants": {
        "GrpcServerCommand": (STAYS, lambda found: {"API_GRPC"} - set(found.__members__)),
        "INCREASE_TIMEOUT_DAGSTER_YAML_MSG": (STAYS, words),
    },
    "dagster._utils.interrupts": {"capture_interrupts": ("the daemon ends its code servers before itself", takes())},
    "dagster._core.errors": {"DagsterUserCodeUnreachableError": (ENDS, an_error)},
    "dagster._core.events": {"EngineEventData": (ENDS, takes("metadata"))},
    "dagster._core.launcher": {
        "CheckRunHealthResult": (ENDS, takes("status", "msg", "run_worker_id")),
        "LaunchRunContext": (ENDS, takes("dagster_run", "workspace")),
        "WorkerStatus": (ENDS, lambda found: {"RUNNING", "FAILED"} - set(found.__members__)),
    },
    "dagster._core.storage.event_log": {
        "SqlEventLogStorage": (BOUNDED, has("index_connection")),
        "SqliteEventLogStorage": (BOUNDED, has("path_for_shard", "run_connection", "get_all_run_ids")),
    },
    "dagster._core.storage.event_log.schema": {
        "SqlEventLogStorageTable": (
            BOUNDED,
            columns("id", "run_id", "timestamp", "dagster_event_type", "asset_key", "partition"),
        ),
        "AssetCheckExecutionsTable": (
            BOUNDED,
            columns("id", "run_id", "asset_key", "check_name", "create_timestamp"),
        ),
        "AssetEventTagsTable": (BOUNDED, columns("event_id")),
    },
    "dagster._core.storage.runs.schema": {
        "RunsTable": (BOUNDED, columns("id", "run_id")),
        "RunTagsTable": (BOUNDED, columns("run_id")),
    },
}
#: Members of Dagster's public classes that Holdfast uses although Dagster's documentation does not mention them.
MEMBERS: list[tuple[type, str, Shape]] = [
    (
        dg.DagsterInstance,
        f"{FORMER}; {STAYS}",
        has(
            *("get_yaml_python_handlers", "get_python_log_dagster_handler_config", "get_ref", "from_config"),
            *("code_server_process_startup_timeout", "wait_for_local_code_server_processes_on_shutdown"),
            *("report_engine_event", "add_run_tags", "all_logs", "optimize_for_webserver", "compute_log_manager"),
        ),
    ),
    (
        dg.DefaultRunLauncher,
        ENDS,
        has("launch_run", "terminate", "check_run_worker_health", "supports_check_run_worker_health", "_instance"),
    ),
    (dg.QueuedRunCoordinator, "one run at a time changes a processor", has("submit_run", "_instance")),
    (dg.SubmitRunContext, "one run at a time changes a processor", takes("dagster_run", "workspace")),
    (PostgresRunStorage, ENDS, has("connect")),
    (SqliteRunStorage, ENDS, has("connect")),
    (PostgresEventLogStorage, BOUNDED, has("index_connection")),
    (SqliteEventLogStorage, BOUNDED, has("index_connection")),
    (DagsterWebserver, SIGNED, has("build_graphql_schema", "create_asgi_app")),
    (DagsterSqliteStorage, "a dagster.yaml of a former version opens", has("from_config_value")),
]
#: Constants that Holdfast copies to avoid an import, each with Dagster's original.
WRITTEN_OUT: list[tuple[object, object]] = [
    (code_servers.AGE_MIN_S, float(RELOAD_WORKSPACE_INTERVAL)),
    (launched_by.USER_TAG, USER_TAG),
    (signed_requests.REPORTING_USER_TAG, REPORTING_USER_TAG),
    (run_launcher.GRPC_INFO_TAG, GRPC_INFO_TAG),
    (run_time_limits.MAX_RUNTIME_TAG, MAX_RUNTIME_SECONDS_TAG),
    (old_events.REPOSITORY, SINGLETON_REPOSITORY_NAME),
    *((status, EVENT_TYPE_TO_PIPELINE_RUN_STATUS[event]) for event, status in launches.TOLD.items()),
]


def imported() -> Iterator[tuple[str, str]]:
    """Module and name of each private import from Dagster in Holdfast."""
    for file in HOST.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
                yield from ((node.module or "", each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                yield from ((each.name, "") for each in node.names if each.name.startswith("dagster._"))


def test_every_private_name_is_in_the_table_and_none_besides() -> None:
    assert set(imported()) == {(module, name) for module, names in NAMES.items() for name in names}


@pytest.mark.parametrize(
    ("module", "name", "promise", "shape"),
    [
        pytest.param(module, name, promise, shape, id=name)
        for module, names in NAMES.items()
        for name, (promise, shape) in names.items()
    ],
)
def test_a_private_name_has_the_shape_that_its_promise_needs(
    module: str, name: str, promise: str, shape: Shape
) -> None:
    found = getattr(import_module(module), name, None)
    assert found is not None, f"{module} has no {name} any more: {promise}"
    assert shape(found) == set(), f"{module}.{name} has another shape: {promise}"


@pytest.mark.parametrize(("owner", "promise", "shape"), MEMBERS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_public_class_has_the_members_that_a_promise_needs(owner: type, promise: str, shape: Shape) -> None:
    assert shape(owner) == set(), promise


@pytest.mark.parametrize(("ours", "dagsters"), WRITTEN_OUT)
def test_what_is_written_out_is_what_dagster_has(ours: object, dagsters: object) -> None:
    assert ours == dagsters
