"""Dagster's definitions: all assets, checks, jobs, sensors, schedules and resources.

Invariants:
    - Building the definitions reads settings and imports processors. It opens no connection, starts no JVM and writes
      no file.
"""

import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)

from holdfast.assets.checks.compaction import compaction_check_keys  # noqa: E402
from holdfast.assets.checks.erased import erased_check_keys  # noqa: E402
from holdfast.assets.checks.key_places import key_places_check_keys  # noqa: E402
from holdfast.assets.factory import build_assets  # noqa: E402
from holdfast.infra.log import configure_logging  # noqa: E402
from holdfast.infra.settings import Settings, load_settings  # noqa: E402
from holdfast.infra.system.privacy import keep_private  # noqa: E402
from holdfast.orchestration.jobs.asset_jobs import (  # noqa: E402
    checkpoint_and_snapshot,
    compaction_checks,
    maintain_warehouse,
    orphan_checks,
    provision_and_deploy,
)
from holdfast.orchestration.jobs.feed_flights import feed_flights  # noqa: E402
from holdfast.orchestration.jobs.lifecycle_verbs import VERB_JOBS  # noqa: E402
from holdfast.orchestration.jobs.recover_processor import recover_processor  # noqa: E402
from holdfast.orchestration.jobs.rehearse_restore import rehearse_restore  # noqa: E402
from holdfast.orchestration.jobs.upkeep import upkeep  # noqa: E402
from holdfast.orchestration.project.unloaded import write_broken  # noqa: E402
from holdfast.orchestration.resources import build_resources  # noqa: E402
from holdfast.orchestration.sensors.kept_green import kept_green  # noqa: E402
from holdfast.orchestration.sensors.recovery import build_sensors  # noqa: E402
from holdfast.orchestration.sensors.schedules import build_schedules  # noqa: E402
from holdfast.orchestration.sensors.timeline import timeline_sensor  # noqa: E402
from holdfast.orchestration.sensors.topics import topics_watch  # noqa: E402
from holdfast.orchestration.sensors.webhook import notifications_sensor  # noqa: E402
from holdfast.processors.application.broken_definition import BrokenDefinition  # noqa: E402
from holdfast.processors.application.registration import ProcessorDefinition, load_processors  # noqa: E402
from holdfast.processors.lifecycle.deploy.marking import began  # noqa: E402

#: The loaded processors. An entry is a ``BrokenDefinition`` if the processor's module can't be imported or used.
Loaded = tuple[ProcessorDefinition | BrokenDefinition, ...]
#: Executes all steps of a run in one process, one after the other. With Dagster's default executor, each step would be
#: a process, and each asset with Spark would start its own JVM.
EXECUTOR = dg.in_process_executor


def build_definitions(settings: Settings, loaded: Loaded | None = None) -> dg.Definitions:
    """All Dagster definitions (assets, jobs, sensors, …) for the processors in the settings.

    ``loaded`` is the result of ``load_processors``, if the caller has it; None loads the processors here.
    """
    loaded = load_processors(settings) if loaded is None else loaded
    working = [definition for definition in loaded if isinstance(definition, ProcessorDefinition)]
    stores = {definition.name: tuple(store.name for store in definition.topology.stores) for definition in working}
    connectors = {definition.name: definition.topology.connectors for definition in working}
    nightly = (compaction_check_keys, key_places_check_keys, erased_check_keys)
    checks = [key for definition in working for keys_of in nightly for key in keys_of(definition)]
    return dg.Definitions.merge(
        build_assets(loaded, settings.snapshots, began(settings.paths, stores), settings.webserver.path_prefix),
        dg.Definitions(
            jobs=[
                provision_and_deploy,
                checkpoint_and_snapshot,
                maintain_warehouse,
                compaction_checks(checks),
                recover_processor,
                feed_flights,
                rehearse_restore,
                orphan_checks,
                upkeep,
                *VERB_JOBS,
            ],
            sensors=[
                *build_sensors(stores, connectors, recovery_enabled=settings.recovery_enabled),
                notifications_sensor(enabled=settings.webhook.url is not None),
                topics_watch(working),
                timeline_sensor(working),
                kept_green(working, enabled=settings.snapshots.automatic),
            ],
            schedules=build_schedules(settings.snapshots),
            resources=build_resources(),
            executor=EXECUTOR,
        ),
    )


def definitions() -> dg.Definitions:
    """All of Holdfast's definitions for the processors of this project, to merge with your own::

        defs = dg.Definitions.merge(holdfast.definitions(), dg.Definitions(assets=[...]))

    Your own definitions may not set an executor, because Holdfast's definitions set one. Your assets can depend on
    Holdfast's assets by key, for example ``deps=["state/<processor>/<store>_state"]``.

    Raises:
        SettingsInvalid: The project file or an environment variable has a value that can't be used.
    """
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    # The umask for private files is set here, because every code server and every run calls this function. This is
    # true even for a Dagster that `holdfast up` did not start.
    keep_private(settings)
    loaded = load_processors(settings)
    write_broken(settings, (each for each in loaded if isinstance(each, BrokenDefinition)))
    return build_definitions(settings, loaded)
