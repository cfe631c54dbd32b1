"""Reads from Dagster's webserver the facts that its UI shows on the page of each asset.

These are check results, materialisations and partitions. For the project's own assets, also the last run.

Invariants:
    - The facts are read with two GraphQL requests, because importing Dagster would take too long for a command.
    - The result is None, not an error, if the webserver does not run, does not answer or refuses the token.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.assets.layers import is_ours
from holdfast.infra.settings import Settings
from holdfast.orchestration.view.webserver import NoAnswer, ask

_QUERY = """{ assetNodes {
  assetKey { path } partitionStats { numMaterialized numPartitions numFailed }
  assetMaterializations(limit: 1) { timestamp } automationCondition { label expandedLabel }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status runId evaluation { severity description } } } } }
} }"""

_LAST_RUNS = """query LastRuns($keys: [AssetKeyInput!]!) { assetsLatestInfo(assetKeys: $keys) {
  assetKey { path } latestRun { runId status } latestMaterialization { runId }
} }"""


class Evaluation(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one asset check: its severity and its text."""

    severity: str
    description: str | None


class Execution(msgspec.Struct, frozen=True, rename="camel"):
    """The last execution of one check since its asset was materialised; ``status`` is Dagster's status text."""

    status: str
    evaluation: Evaluation | None
    #: Id of the run that executed the check.
    run_id: str | None = None


class Check(msgspec.Struct, frozen=True, rename="camel"):
    """One asset check. ``execution_for_latest_materialization`` is its execution since the last materialisation."""

    name: str
    execution_for_latest_materialization: Execution | None

    @property
    def last(self) -> Execution | None:
        """The last execution of the check since the asset was materialised; None if it was not executed since then."""
        return self.execution_for_latest_materialization


class Partitions(msgspec.Struct, frozen=True, rename="camel"):
    """Three counts of an asset's time partitions: materialised, all, and failed."""

    num_materialized: int
    num_partitions: int
    num_failed: int


class AssetPage(msgspec.Struct, frozen=True):
    """The facts that Dagster's UI shows about one asset."""

    key: tuple[str, ...]
    materialized: bool
    partitions: Partitions | None
    checks: tuple[Check, ...]
    #: The name of the Dagster automation condition that materialises the asset; None if the asset has no condition.
    condition: str | None = None
    #: Id of the asset's last run, if that run failed before it materialised the asset; only for the project's assets.
    failed_run: str | None = None

    @property
    def name(self) -> str:
        """The asset key with slashes, for example ``state/fleet/seen_state``."""
        return "/".join(self.key)


def read_pages(settings: Settings) -> tuple[AssetPage, ...] | None:
    """The facts about every asset of this installation; None if the webserver does not answer as expected."""
    try:
        pages = tuple(map(_page, ask(settings, _QUERY)["assetNodes"]))
        own = [{"path": page.key} for page in pages if not is_ours(page.key)]
        failed = _failed_runs(ask(settings, _LAST_RUNS, keys=own)["assetsLatestInfo"]) if own else {}
        return tuple(msgspec.structs.replace(page, failed_run=failed.get(page.key)) for page in pages)
    except (NoAnswer, KeyError, TypeError, msgspec.ValidationError):
        return None


def _failed_runs(found: list[dict[str, Any]]) -> dict[tuple[str, ...], str]:
    """Asset key -> id of the last run, for assets whose last run failed before it materialised them."""
    return {
        tuple(each["assetKey"]["path"]): run["runId"]
        for each in found
        if (run := each["latestRun"]) is not None
        and run["status"] == "FAILURE"
        and (each["latestMaterialization"] or {}).get("runId") != run["runId"]
    }


def _page(node: dict[str, Any]) -> AssetPage:
    return AssetPage(
        key=tuple(node["assetKey"]["path"]),
        materialized=bool(node["assetMaterializations"]),
        partitions=msgspec.convert(node["partitionStats"], Partitions | None),
        checks=msgspec.convert(node["assetChecksOrError"].get("checks", []), tuple[Check, ...]),
        condition=_condition(node["automationCondition"]),
    )


def _condition(found: dict[str, Any] | None) -> str | None:
    if found is None:
        return None
    return str(found["label"] or " ".join(found["expandedLabel"]))
