"""The Dagster code location `recovery`: sensors and jobs that run even if the project's own code can't be imported.

Invariants:
    - This module imports no module of the project, and no definition of a processor.
"""

import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)

from holdfast.infra.log import configure_logging  # noqa: E402
from holdfast.infra.settings import Settings, load_settings  # noqa: E402
from holdfast.infra.system.privacy import keep_private  # noqa: E402
from holdfast.orchestration.host.warm_runs import is_code_server, start_runs_by_fork  # noqa: E402
from holdfast.orchestration.jobs.recover_processor import recover_processor  # noqa: E402
from holdfast.orchestration.jobs.upkeep import upkeep  # noqa: E402
from holdfast.orchestration.resources import build_resources  # noqa: E402
from holdfast.orchestration.sensors.recovery import recovery_sensor, run_failures  # noqa: E402
from holdfast.orchestration.sensors.schedules import upkeep_hourly  # noqa: E402
from holdfast.orchestration.sensors.webhook import notifications_sensor  # noqa: E402

#: Modules that are imported once, in the process from which the processes of all runs are forked. This module is not in
#: the list, because it reads the settings at its import, and each run must read the settings at its own start.
NEEDED_BY_RUNS = (
    "dagster",
    "holdfast.orchestration.jobs.recover_processor",
    "holdfast.orchestration.jobs.upkeep",
    "holdfast.orchestration.resources",
    "holdfast.orchestration.sensors.recovery",
    "holdfast.orchestration.sensors.schedules",
    "holdfast.orchestration.sensors.webhook",
)


def build_recovery(settings: Settings) -> dg.Definitions:
    """The Dagster definitions of the code location `recovery`."""
    return dg.Definitions(
        jobs=[recover_processor, upkeep],
        sensors=[
            recovery_sensor(enabled=settings.recovery_enabled, apart=True),
            notifications_sensor(enabled=settings.webhook.url is not None, apart=True),
            run_failures,
        ],
        schedules=[upkeep_hourly(apart=True)],
        resources=build_resources(),
        executor=dg.in_process_executor,
    )


def _loaded() -> dg.Definitions:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    keep_private(settings)
    if is_code_server():
        start_runs_by_fork(NEEDED_BY_RUNS)
    return build_recovery(settings)


defs = _loaded()
