"""Converts entries of a timeline to Dagster events that need no run.

Invariants:
    - A deploy or ``provision`` from the command line becomes a materialization, like one by a Dagster run. Every other
      entry becomes an observation, because observations do not change the state of checks.
    - Each event has a tag with its identity, so that an event that was already reported is found by this tag.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.processors.lifecycle.recovery.messages.timeline import Event

#: The name of the Dagster tag that contains an event's identity.
EVENT_TAG = "holdfast/event"
#: An event counts as reported before if it is among this many newest Dagster events of its asset.
LOOKED_THROUGH = 50
#: Maximum number of characters of a description, because Dagster shows the description in one line of a list.
TEXT_MAX = 1_000


def key_of(event: Event) -> dg.AssetKey:
    """The key of the asset that an event belongs to."""
    name = event.entry.processor
    if event.layer == "installation":
        return keys.orphans_key()
    if event.layer == "processor":
        return keys.processor_key(name)
    return keys.state_key(name, event.store) if event.layer == "state" else keys.changelog_key(name, event.store)


def as_dagster(event: Event, versions: Mapping[str, str]) -> dg.AssetMaterialization | dg.AssetObservation:
    """Converts a timeline event to a Dagster event: a materialization or an observation.

    ``versions`` are the tags of a materialization with its versions (``assets.pages.data_versions``).
    """
    kind = dg.AssetMaterialization if event.materializes else dg.AssetObservation
    return kind(
        asset_key=key_of(event),
        description=event.entry.text[:TEXT_MAX],
        metadata=_metadata(event),
        tags={EVENT_TAG: _tag(event.identity), **(versions if event.materializes else {})},
    )


def is_stored(instance: dg.DagsterInstance, event: Event) -> bool:
    """Whether Dagster has the event among the newest events of its asset."""
    wanted = dg.AssetRecordsFilter(asset_key=key_of(event))
    fetch = instance.fetch_materializations if event.materializes else instance.fetch_observations
    for record in fetch(wanted, limit=LOOKED_THROUGH).records:
        stored = record.asset_materialization if event.materializes else record.event_log_entry.asset_observation
        if stored is not None and (stored.tags or {}).get(EVENT_TAG) == _tag(event.identity):
            return True
    return False


def _metadata(event: Event) -> dict[str, Any]:
    entry = event.entry
    metadata: dict[str, Any] = {
        "event": entry.kind,
        "outcome": entry.outcome,
        "at": dg.MetadataValue.timestamp(entry.at),
    }
    if entry.who:
        metadata["who"] = entry.who
    if entry.plan:
        metadata["plan"] = entry.plan
    if entry.seconds is not None:
        metadata["seconds"] = round(entry.seconds, 3)
    if entry.run:
        metadata["run"] = dg.MetadataValue.dagster_run(entry.run)
    if entry.details:
        metadata["steps"] = dg.MetadataValue.md("\n".join(f"{n}. {each}" for n, each in enumerate(entry.details, 1)))
    return metadata


def _tag(identity: str) -> str:
    """An event's identity as a tag's value: characters that Dagster does not allow become underscores."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "_" for letter in identity)[-63:]
