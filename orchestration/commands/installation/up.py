"""``holdfast up``: starts the services in the order of their dependencies, then the project's processors.

    ┌─► broker → registry → supervisor ─┬─► daemon
    │                                   └─► the project's processors, deployed
    └─► webserver

Invariants:
    - The daemon starts after the supervisor. Otherwise the daemon's sensors would report all workers as dead.
    - If the configured Kafka cluster does not answer or is too old, an error is raised before any service starts.
    - If a start fails, the error is raised only after all other starts have ended. So ``holdfast down`` finds all
      services. If broker, registry, supervisor or Spark fails, the webserver that this command started is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from holdfast.orchestration.commands.options import print_json

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings
    from holdfast.orchestration.project.what_up_starts import Started

Say = Callable[[str], None]

#: Maximum number of processors whose pages are printed. Dagster's page of all groups links to all other processors.
_PAGES_MAX = 5
#: Exit code of ``holdfast up`` if all services run, but a processor of the project could not be started.
NOT_ALL_DEPLOYED = 2


def start_all(settings: Settings, console: Console, port: int | None, *, as_json: bool) -> int:
    """Start the services that do not run, and print all services; returns 0, or ``NOT_ALL_DEPLOYED``.

    Without a project, no processor is deployed, and the command prints how to create a project.
    """
    from holdfast.infra.home import claim_home
    from holdfast.orchestration.host import local

    _check_extras(settings)
    _check_cluster(settings)
    claim_home(settings)
    # Dagster's configuration is checked first, so that an error in it stops the command before any service starts.
    local.check_configuration(settings)
    local.shrink(settings)
    deployed: tuple[Started, ...] = ()
    with console.status("starting the broker …") as spinner:

        def say(line: str) -> None:
            spinner.update(escape(line))

        # The services start in threads, because each start mostly waits: for the broker's JVM, for Dagster's imports,
        # or for Kafka.
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="dagster-start") as aside:
            serves = local.running(settings, local.WEBSERVER) is not None
            webserver = aside.submit(local.start_webserver, settings, port=port)
            try:
                services = _start_services(settings, say)
            except BaseException:
                if not serves:
                    wait([webserver])
                    local.stop(settings, local.WEBSERVER)
                raise
            if webserver.done():
                webserver.result()  # If the port is in use, the error is raised here, before processors are deployed.
            daemon = aside.submit(local.start_daemon, settings)
            if settings.project is not None:
                from holdfast.orchestration.project.what_up_starts import start_project

                deployed = start_project(settings, say)
            say("starting Dagster …")
            services |= {"daemon": daemon.result(), "dagster": webserver.result()}
    if as_json:
        rows = [
            {
                "processor": each.processor,
                "running": each.running,
                "sentence": each.sentence,
                "lineage": lineage_page(services["dagster"], each.processor),
            }
            for each in deployed
        ]
        of_project = {} if settings.project is None else {"project": str(settings.project), "processors": rows}
        print_json({**services, **of_project})
    else:
        _print(settings, console, services, deployed)
    return 0 if all(each.running for each in deployed) else NOT_ALL_DEPLOYED


def _check_extras(settings: Settings) -> None:
    """Raise an error that names all optional dependency groups (extras) that the services need and that are missing."""
    from holdfast.infra.installation import check_extras

    embedded = settings.kafka.bootstrap_servers is None
    check_extras("dagster", *("spark",) if embedded else ())


def _check_cluster(settings: Settings) -> None:
    """Raise an error if the configured Kafka cluster can't be used; the embedded broker is not checked."""
    from holdfast.infra.kafka.clients.client import client_config
    from holdfast.infra.kafka.inspection.cluster_facts import check_brokers

    if settings.kafka.bootstrap_servers is not None:
        check_brokers(settings.kafka.bootstrap_servers, client_config(settings))


def _start_services(settings: Settings, say: Say) -> dict[str, str]:
    """Start broker, registry, supervisor and Spark server if they are needed; returns service name -> address."""
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.embedded.broker import embedded_broker, running_broker
    from holdfast.infra.machine import prepare
    from holdfast.infra.settings import WARM
    from holdfast.infra.spark.server import start_server
    from holdfast.orchestration.world import open_registry

    started = {}
    if settings.kafka.bootstrap_servers is not None:
        started["kafka"] = settings.kafka.bootstrap_servers
    else:
        prepare(settings, ("broker",), say)
        broker = running_broker(settings.paths.kafka) or embedded_broker(settings).find_or_start()
        started["kafka"] = broker.bootstrap
    say("migrating the registry …")
    open_registry(settings).close()
    started["registry"] = str(settings.paths.registry) if settings.registry_url is None else "as configured"
    say("starting the supervisor …")
    started["supervisor"] = f"process {open_deployer(settings.paths).start()}"
    if settings.spark.master == WARM:
        say("starting Spark …")
        started["spark"] = start_server(settings).url
    return started


def _print(settings: Settings, console: Console, services: Mapping[str, str], deployed: tuple[Started, ...]) -> None:
    from holdfast.orchestration.commands.reports.status import print_services
    from holdfast.processors.application.broken_definition import BrokenDefinition
    from holdfast.processors.application.registration import load_processors

    print_services(services.items(), console)
    if settings.project is None:
        for broken in load_processors(settings):
            if isinstance(broken, BrokenDefinition):
                console.print(f"  broken       {escape(broken.sentence)}.", highlight=False, soft_wrap=True)
        _tell_without_project(settings, console)
        return
    for each in deployed:
        mark = "[green]✓[/]" if each.running else "[red]✗[/]"
        console.print(f"{mark} {escape(each.processor)}: {escape(each.sentence)}", highlight=False, soft_wrap=True)
    running = [each.processor for each in deployed if each.running]
    for name in running[:_PAGES_MAX] if "dagster" in services else ():
        page = lineage_page(services["dagster"], name)
        console.print(f"  {escape(name)} in Dagster: {escape(page)}", highlight=False, soft_wrap=True)
    _tell_next(console, next(iter(running), None))


def lineage_page(dagster: str, processor: str) -> str:
    """The address of the page in Dagster that shows the lineage of one processor: its topics, state and tables."""
    from holdfast.assets.layers import group_of

    return f"{dagster}/locations/holdfast/asset-groups/{group_of(processor)}/lineage"


def _tell_without_project(settings: Settings, console: Console) -> None:
    names = ", ".join(target.partition(":")[0].rpartition(".")[2] for target in settings.processors)
    lines = (
        f"There is no project here: no `holdfast.toml`, from this folder upwards. Dagster shows {names or 'nothing'}; "
        "deploy them in Dagster, or with `holdfast deploy NAME`.",
        "Make a project of your own with `holdfast init my_project`.",
        "All services run in the background; stop them with `holdfast down`.",
    )
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)


def _tell_next(console: Console, processor: str | None) -> None:
    console.print("Next:", highlight=False)
    rows = [("holdfast top", "watch lag, rate and state")]
    if processor is not None:
        rows += [
            (f"holdfast query {processor} --all", "look into its state"),
            (f"holdfast deploy {processor}", "run the edited code"),
        ]
    for command, what in (*rows, ("holdfast down", "stop everything; state is kept")):
        console.print(f"  {escape(command):<36} {what}", highlight=False)
