"""The command ``holdfast webserver``: Dagster's webserver with Dagster's options, behind the access control.

Dagster's application runs in this process and has no port of its own, so every request passes the access control.
"""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import structlog
import uvicorn
from dagster_shared.cli import WorkspaceOpts
from dagster_webserver.cli import DEFAULT_WEBSERVER_PORT, create_dagster_webserver_cli
from dagster_webserver.version import __version__ as dagsters_version
from starlette.types import ASGIApp

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.settings import Settings, WebserverSettings
from holdfast.infra.system.ports import can_bind, free_port
from holdfast.orchestration.host.front.layer import Front
from holdfast.orchestration.host.front.pages import WithPages
from holdfast.orchestration.host.front.rules import rules_of, unguarded
from holdfast.orchestration.host.front.signed_requests import SignedProcessContext, SignedWebserver
from holdfast.orchestration.host.front.state_page import WithStatePage
from holdfast.orchestration.host.local import WORKSPACE
from holdfast.orchestration.host.opening import code_locations, open_instance, options_of, write_logs

log = structlog.get_logger("webserver")


class WebserverUnguarded(BadConfiguration):
    """Other machines could use Dagster's UI without authentication, so the webserver does not start."""


class PathPrefixInvalid(BadConfiguration):
    """``--path-prefix`` differs from the path prefix in the settings, which the links to the docs contain."""


def webserver_command(settings: Settings) -> click.Command:
    """The click command ``holdfast webserver``: Dagster's options; address and path prefix default to the settings."""
    dagsters: click.Command = create_dagster_webserver_cli()  # type: ignore[no-untyped-call]
    return click.Command(
        "webserver",
        params=options_of(dagsters),
        callback=_serving(settings),
        help="Serve Dagster's UI: on loopback to programs of this machine, elsewhere to holders of a token.",
        context_settings={
            "default_map": {"host": settings.webserver.host, "path_prefix": settings.webserver.path_prefix},
            "auto_envvar_prefix": "DAGSTER_WEBSERVER",
        },
    )


def guarded_app(
    context: SignedProcessContext,
    settings: WebserverSettings,
    prefix: str,
    poll_ms: int | None = None,
    endpoints: Path | None = None,
) -> ASGIApp:
    """The ASGI application: Dagster's webserver, the docs and the page of state, behind the settings' access control.

    Args:
        context: Dagster's workspace.
        settings: The webserver's settings, with the address on which it really listens.
        prefix: The URL path prefix of the UI, for example ``/dagster``; empty for none.
        poll_ms: Interval at which the UI polls the data of assets, milliseconds; None for Dagster's default.
        endpoints: Folder with the endpoint files of workers; None serves no page of state.
    """
    app: ASGIApp = WithPages(SignedWebserver(context, prefix, poll_ms).create_asgi_app(), prefix)
    if endpoints is not None:
        app = WithStatePage(app, endpoints, prefix)
    return Front(app, rules_of(settings, prefix=prefix))


def _serving(settings: Settings) -> Callable[..., None]:
    def serve(**options: Any) -> None:
        host, prefix = options["host"], options["path_prefix"]
        _check(host, prefix, settings)
        if options["suppress_warnings"]:
            os.environ["PYTHONWARNINGS"] = "ignore"
        workspace = WorkspaceOpts.extract_from_cli_options(options)
        if not workspace.empty_workspace and not workspace.specifies_target():
            workspace = WorkspaceOpts(workspace=(str(WORKSPACE),))
        write_logs(options["log_format"], options["dagster_log_level"])
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        with ExitStack() as stack:
            context = _workspace(stack, workspace, options)
            listening = settings.webserver.model_copy(update={"host": host})
            app = guarded_app(context, listening, prefix, options["live_data_poll_rate"], settings.paths.run)
            port = options["port"] or _port()
            log.info("webserver.serving", url=f"http://{host}:{port}{prefix}", process=os.getpid())
            logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
            # X-Forwarded-For is ignored (proxy_headers=False), because any client can send it. The address of the
            # connection decides whether a proxy's identity header is accepted.
            uvicorn.run(
                app,
                host=host,
                port=port,
                log_level=options["uvicorn_log_level"],
                proxy_headers=False,
                server_header=False,
            )

    return serve


def _workspace(stack: ExitStack, workspace: WorkspaceOpts, options: dict[str, Any]) -> SignedProcessContext:
    """Dagster's workspace, opened in the same way as by Dagster's own command; closed when ``stack`` is closed."""
    instance = stack.enter_context(open_instance("holdfast webserver", temporary=True))
    instance.optimize_for_webserver(
        options["db_statement_timeout"], options["db_pool_recycle"], options["db_pool_max_overflow"]
    )
    return stack.enter_context(
        SignedProcessContext(
            instance,
            version=dagsters_version,
            read_only=options["read_only"],
            workspace_load_target=code_locations(workspace),
            code_server_log_level=options["code_server_log_level"],
        )
    )


def _check(host: str, prefix: str, settings: Settings) -> None:
    if unguarded(host, settings.webserver):
        raise WebserverUnguarded(
            f"Other machines can reach {host}, and nobody is asked who they are.",
            action="Set `HOLDFAST_WEBSERVER__TOKENS` or `HOLDFAST_WEBSERVER__PROXIES`, or listen on 127.0.0.1.",
            host=host,
        )
    if prefix != settings.webserver.path_prefix:
        raise PathPrefixInvalid(
            f"The path prefix is {prefix!r}; the settings have {settings.webserver.path_prefix!r}. Code servers write "
            "the links to the docs, and know the settings only.",
            action="Leave `--path-prefix` out. Set `HOLDFAST_WEBSERVER__PATH_PREFIX`, as `/dagster`, where the "
            "webserver, the daemon and the code servers run.",
            prefix=prefix,
            expected=settings.webserver.path_prefix,
        )


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Log filter that drops uvicorn's lines about refused WebSockets; a hostile page could fill the disk with them."""
    return "without completing handshake" not in record.getMessage()


def _port() -> int:
    return int(DEFAULT_WEBSERVER_PORT) if can_bind(DEFAULT_WEBSERVER_PORT) else free_port()
