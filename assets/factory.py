"""Builds all assets and checks of the processors, as a pure function of their topologies.

    topics/<t> ─► changelogs/<p>/<s>_changelog ─► processors/<p>/<p>_processor ─► state/<p>/<s>_state
                                                                                      └─► warehouse/<p>/<s>_snapshot
                                                                                            └─► <s>_maintenance

Sources are upstream of the topic that they feed, and sinks are downstream of their processor (``checks.connectors``).
The keys have the names of a topic ``<t>``, a processor ``<p>`` and a store ``<s>``.

Invariants:
    - The functions of this module use no Kafka client, no file and no environment variable.
    - A definition that cannot be imported becomes an asset that shows the error. All other assets load normally.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import cast

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.changelogs import changelog_asset
from holdfast.assets.checks.arrivals import arrivals_check
from holdfast.assets.checks.audits import audit_check
from holdfast.assets.checks.compaction import compaction_check
from holdfast.assets.checks.connectors import connector_assets, connector_checks
from holdfast.assets.checks.erased import erased_check
from holdfast.assets.checks.growth import home_asset, room_check
from holdfast.assets.checks.key_places import key_places_check
from holdfast.assets.checks.orphans import orphans_asset, orphans_check
from holdfast.assets.checks.proven import proven_check
from holdfast.assets.checks.queries import query_checks
from holdfast.assets.checks.recovery import working_check
from holdfast.assets.checks.rehearsals import rehearsal_check
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.checks.topics import watch_checks
from holdfast.assets.maintenance import maintenance_asset
from holdfast.assets.pages.metadata import docs_below
from holdfast.assets.processors import processor_asset
from holdfast.assets.snapshots import snapshot_asset
from holdfast.assets.state import state_asset
from holdfast.assets.topics import topic_assets
from holdfast.infra.settings import SnapshotSettings
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.application.registration import ProcessorDefinition

IMPORTABLE = "importable"


def build_processor(
    definition: ProcessorDefinition, snapshots: SnapshotSettings | None = None, began: datetime | None = None
) -> dg.Definitions:
    """The assets and checks of one processor, without the assets of its topics, because processors share topics.

    ``began`` is the time of the earliest deployment of any processor, at which the time partitions of tables begin.
    """
    topology = definition.topology
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [*connector_assets(definition)]
    assets += [changelog_asset(definition, changelog) for changelog in topology.changelogs]
    assets.append(processor_asset(definition))
    for store in topology.stores:
        assets.append(state_asset(definition, store.name, snapshots))
        if store.name in topology.logged:
            assets.append(snapshot_asset(definition, store.name, snapshots, began))
            assets.append(maintenance_asset(definition, store.name))
    checks = [compaction_check, rehearsal_check] if topology.changelogs else []
    checks += [audit_check] if topology.logged else []
    checks += [key_places_check, erased_check] if topology.stores else []
    return dg.Definitions(
        assets=assets,
        asset_checks=[
            *(check(definition) for check in (working_check, proven_check, arrivals_check, *checks)),
            *connector_checks(definition),
            *query_checks(definition),
        ],
    )


def build_assets(
    loaded: Sequence[ProcessorDefinition | BrokenDefinition],
    snapshots: SnapshotSettings | None = None,
    began: datetime | None = None,
    path_prefix: str = "",
) -> dg.Definitions:
    """The assets and checks of all processors, topics, orphans (resources without an owner) and broken definitions.

    There is also an asset for the home folder. Links to the docs begin with ``path_prefix``, the webserver's prefix.
    ``began`` is the time of the earliest deployment; the time partitions of all tables begin at this time. All tables
    have the same start, so that one run, with one JVM, can materialise all of them. Dagster allows this only for assets
    with equal partitions.
    """
    working = [definition for definition in loaded if isinstance(definition, ProcessorDefinition)]
    owners = list(dict.fromkeys(owner for definition in working for owner in definition.owners))
    broken = [_broken(definition) for definition in loaded if isinstance(definition, BrokenDefinition)]
    made = dg.Definitions.merge(
        dg.Definitions(assets=topic_assets(working), asset_checks=watch_checks(working)),
        dg.Definitions(
            assets=[orphans_asset(owners), home_asset(owners)], asset_checks=[orphans_check(), room_check()]
        ),
        dg.Definitions(assets=[spec for spec, _ in broken], asset_checks=[check for _, check in broken]),
        *(build_processor(definition, snapshots, began) for definition in working),
    )
    if not path_prefix:
        return made
    assets = cast("Iterable[dg.AssetsDefinition | dg.AssetSpec]", made.assets or ())
    linked = dg.map_asset_specs(partial(docs_below, path_prefix), assets)
    return dg.Definitions(assets=linked, asset_checks=made.asset_checks)


def _broken(broken: BrokenDefinition) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """The asset of a processor's definition that cannot be imported, and its check, which always fails.

    The asset's page shows the error.
    """
    key = keys.broken_key(broken.target)
    spec = dg.AssetSpec(
        key,
        description=f"{broken.target} can't be imported: {broken.fault}\n\n```\n{broken.error.strip()}\n```",
        group_name=keys.BROKEN_GROUP,
        kinds={"python"},
        tags=keys.tags(keys.PROCESSORS),
        metadata={"target": broken.target, "error": dg.MetadataValue.md(f"```\n{broken.error.strip()}\n```")},
    )

    @dg.asset_check(asset=key, name=IMPORTABLE, description="Python can import the definition.")
    def importable() -> dg.AssetCheckResult:
        return CheckResult(
            key,
            IMPORTABLE,
            False,
            f"{broken.sentence}.",
            action=broken.action,
            metadata={"target": broken.target},
        ).result()

    return spec, importable
