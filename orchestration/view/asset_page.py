"""The page of each asset as Dagster's webserver shows it.

A page has check results, materialisations, partitions, and the last run of an asset of the project.

Invariants:
    - Reads over GraphQL, in two requests: loading Dagster itself takes longer than a command may.
    - A webserver that does not run, does not answer or asks for a token of another program gives None, not an error.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from holdfast.assets.layers import is_ours
from holdfast.infra.settings import Settings
from holdfast.orchestration.host import local

#: Timeout of the request, seconds.
TIMEOUT_S = 10.0
_QUERY = """{ assetNodes {
  assetKey { path } partitionStats { numMaterialized numPartitions numFailed }
  assetMaterializations(limit: 1) { timestamp } automationCondition { label expandedLabel }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status evaluation { severity description } } } } }
} }"""

_LAST_RUNS = """query LastRuns($keys: [AssetKeyInput!]!) { assetsLatestInfo(assetKeys: $keys) {
  assetKey { path } latestRun { runId status } latestMaterialization { runId }
} }"""


class Evaluation(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one check, with its text."""

    severity: str
    description: str | None


class Execution(msgspec.Struct, frozen=True, rename="camel"):
    """The run of one check since the last materialisation of its asset; ``status`` is Dagster's."""

    status: str
    evaluation: Evaluation | None


class Check(msgspec.Struct, frozen=True, rename="camel"):
    """One check; ``execution_for_latest_materialization`` is None while the check did not run."""

    name: str
    execution_for_latest_materialization: Execution | None

    @property
    def last(self) -> Execution | None:
        """Its run since the asset was last materialised."""
        return self.execution_for_latest_materialization


class Partitions(msgspec.Struct, frozen=True, rename="camel"):
    """Numbers of time partitions."""

    num_materialized: int
    num_partitions: int
    num_failed: int


class AssetPage(msgspec.Struct, frozen=True):
    """One asset as Dagster shows it."""

    key: tuple[str, ...]
    materialized: bool
    partitions: Partitions | None
    checks: tuple[Check, ...]
    #: The automation condition that materialises the asset, by Dagster's name; None without one.
    condition: str | None = None
    #: The last run for the asset, if that run failed before it materialised the asset; read for assets of the project.
    failed_run: str | None = None

    @property
    def name(self) -> str:
        """The key as text."""
        return "/".join(self.key)


def read_pages(settings: Settings) -> tuple[AssetPage, ...] | None:
    """The page of every asset of this installation; None when the webserver does not answer with pages."""
    web = local.running(settings, local.WEBSERVER)
    if web is None:
        return None
    tokens = settings.webserver.tokens
    headers = {"Authorization": f"Bearer {next(iter(tokens.values()))}"} if tokens else {}

    def ask(query: str, **variables: object) -> dict[str, Any]:
        document = {"query": query, "variables": variables}
        answer = httpx.post(f"{web.url}/graphql", json=document, headers=headers, timeout=TIMEOUT_S, trust_env=False)
        return dict(answer.json()["data"])

    try:
        pages = tuple(map(_page, ask(_QUERY)["assetNodes"]))
        own = [{"path": page.key} for page in pages if not is_ours(page.key)]
        failed = _failed_runs(ask(_LAST_RUNS, keys=own)["assetsLatestInfo"]) if own else {}
        return tuple(msgspec.structs.replace(page, failed_run=failed.get(page.key)) for page in pages)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, msgspec.ValidationError):
        return None


def _failed_runs(found: list[dict[str, Any]]) -> dict[tuple[str, ...], str]:
    """Asset -> the id of its last run, if that run failed without materialising the asset."""
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
