"""Prepares the demo's own home folder: the subfolder ``demo`` of the home folder, emptied at the start of each demo.

Invariants:
    - The demo changes no other file of the home folder, even if an installation runs from the home folder.
    - A folder that a running broker or supervisor uses is never deleted.
    - Only a folder with the demo's marker file is emptied. Any other folder that has files is refused.
"""

from __future__ import annotations

import shutil

from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.embedded.broker import running_broker
from holdfast.infra.paths import Paths
from holdfast.infra.settings import WARM, Settings

#: Name of the demo's home folder; it is a subfolder of the home folder in the settings.
FOLDER = "demo"
#: Name of the file that marks a folder as created by the demo.
MARKER = "made-by-demo"


class HomeNotFree(HoldfastError):
    """The demo can't use its home folder, because services run in the folder, or it has files that no demo made."""

    exit_code = EXIT_BAD_CONFIGURATION


def demo_settings(settings: Settings) -> Settings:
    """The settings of a demo: its own home folder, the example processors, and one Spark for all steps.

    If the settings name a Spark cluster, the demo uses the cluster. A local Spark is replaced by a warm Spark process,
    because a local Spark would start a JVM for each step.
    """
    local = settings.spark.master.startswith("local")
    spark = settings.spark.model_copy(update={"master": WARM}) if local else settings.spark
    shipped = Settings.model_fields["processors"].default
    own = {"home": settings.home / FOLDER, "spark": spark, "processors": shipped, "definitions": None, "project": None}
    # Automatic snapshots are off, because the demo publishes its own snapshots. A scheduled snapshot could be newer
    # than the snapshot that the demo compares.
    snapshots = settings.snapshots.model_copy(update={"automatic": False})
    return settings.model_copy(update={**own, "snapshots": snapshots})


def prepare_home(paths: Paths) -> bool:
    """Empty the demo's home folder and write the marker; returns whether files of an earlier demo were deleted.

    Raises:
        HomeNotFree: A broker or supervisor runs in the folder, or the folder has files but no marker.
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
