"""The home folder of a demo: the folder ``demo`` of the home folder, empty at the start, and marked as the demo's.

Invariants:
    - The demo leaves the rest of the home folder alone, also while an installation runs from it.
    - A folder that a running broker or supervisor uses is never deleted.
    - Only a folder with the demo's marker is emptied; any other folder with files is refused.
"""

from __future__ import annotations

import shutil

from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.broker import running_broker
from holdfast.infra.paths import Paths
from holdfast.infra.settings import WARM, Settings

#: The demo's home folder, below the home folder of the settings.
FOLDER = "demo"
#: The marker file of a folder that the demo created.
MARKER = "made-by-demo"


class HomeNotFree(HoldfastError):
    """The demo cannot use the home folder: it is in use, or holds other files."""

    exit_code = EXIT_BAD_CONFIGURATION


def demo_settings(settings: Settings) -> Settings:
    """The settings of a demo: a separate home folder, the included processors, and one Spark for all steps.

    If the settings name a Spark, the demo uses it; a local Spark would start a JVM for each step.
    """
    local = settings.spark.master.startswith("local")
    spark = settings.spark.model_copy(update={"master": WARM}) if local else settings.spark
    shipped = Settings.model_fields["processors"].default
    own = {"home": settings.home / FOLDER, "spark": spark, "processors": shipped, "definitions": None, "project": None}
    # The demo publishes its snapshots itself; a snapshot by Dagster meanwhile would overtake them.
    snapshots = settings.snapshots.model_copy(update={"automatic": False})
    return settings.model_copy(update={**own, "snapshots": snapshots})


def prepare_home(paths: Paths) -> bool:
    """Empty the home folder and mark it; returns whether files of an earlier demo were deleted.

    Raises:
        HomeNotFree: A broker or supervisor runs in the home, or the home has files and no marker.
    """
    home = paths.home
    held = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
    broker, supervisor = running_broker(paths.kafka), open_deployer(paths).pid()
    runs = [f"a broker (process {broker.pid})"] if broker is not None else []
    runs += [f"a supervisor (process {supervisor})"] if supervisor is not None else []
    if runs:
        raise HomeNotFree(
            f"The home folder {home} is in use by {', '.join(runs)}.",
            action=f"Stop it with `HOLDFAST_HOME={home} holdfast down`, or set `HOLDFAST_HOME` to another folder.",
            home=str(home),
            running=", ".join(runs),
        )
    if held and MARKER not in held:
        raise HomeNotFree(
            f"The home folder {home} holds {', '.join(held[:6])}, and no demo made it.",
            action="Delete that folder if you do not need it, or set `HOLDFAST_HOME` to another folder.",
            home=str(home),
        )
    if held:
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARKER).write_text("`holdfast demo` made this folder; the next demo empties it.\n")
    return bool(held)
