"""The data versions of live assets (topics, changelogs, processors, state), with which Dagster decides on "Unsynced".

Dagster compares the data versions of an asset's inputs with those at the asset's last materialisation. Live assets
change all the time, and a running processor handles these changes by itself. So each live asset has one data version,
which never changes, and only a processor with old code becomes "Unsynced". Checks and freshness policies show whether
the assets are consistent with each other.

    code of the files ≠ code that is deployed  ──► the processor is "Unsynced": deploy it
    everything else                            ──► synced
"""

from collections.abc import Iterable

import dagster as dg

from holdfast.assets import keys

#: The data version of every asset that changes outside of Dagster's runs.
LIVE = dg.DataVersion("live")
#: Dagster's default data version for an event without a data version. Events of topic assets have none.
_UNKNOWN = "INITIAL"
#: Names of the tags that Dagster itself writes to a materialisation in a run.
DATA_VERSION_TAG, CODE_VERSION_TAG = "dagster/data_version", "dagster/code_version"
INPUT_VERSION_TAG, INPUT_POINTER_TAG = "dagster/input_data_version", "dagster/input_event_pointer"


def tags_of_live() -> dict[str, str]:
    """The tag of a reported materialisation of a live asset: its data version, which never changes."""
    return {DATA_VERSION_TAG: LIVE.value}


def tags_of_deployed(code_version: str, parents: Iterable[dg.AssetKey]) -> dict[str, str]:
    """The tags that a run would give to a processor's materialisation: its deployed version and its inputs' versions.

    Without these tags, Dagster compares times, and a changelog that is provisioned later would make the processor look
    outdated.
    """
    inputs: dict[str, str] = {}
    for parent in parents:
        name = parent.to_user_string()
        inputs[f"{INPUT_VERSION_TAG}/{name}"] = _UNKNOWN if parent.path[0] == keys.TOPICS else LIVE.value
        inputs[f"{INPUT_POINTER_TAG}/{name}"] = "NULL"
    return {**tags_of_live(), CODE_VERSION_TAG: code_version, **inputs}
