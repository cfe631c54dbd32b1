"""What Dagster's webserver shows of each asset: its results of checks, its materialisations, its partitions.

Invariants:
    - Reads over GraphQL, in one request: loading Dagster itself takes longer than a command may.
    - A webserver that does not run, does not answer or asks for a token of another program gives None, not an error.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from holdfast.infra.settings import Settings
from holdfast.orchestration import local

#: Timeout of the request, seconds.
TIMEOUT_S = 10.0
_QUERY = """{ assetNodes {
  assetKey { path } partitionStats { numMaterialized numPartitions numFailed }
  assetMaterializations(limit: 1) { timestamp } automationCondition { label expandedLabel }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status evaluation { severity description } } } } }
} }"""


class Evaluation(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one check, in its words."""

    severity: str
    description: str | None


class Execution(msgspec.Struct, frozen=True, rename="camel"):
    """The run of one check since its asset was last materialised; ``status`` is Dagster's."""

    status: str
    evaluation: Evaluation | None


class Check(msgspec.Struct, frozen=True, rename="camel"):
    """One check; ``execution_for_latest_materialization`` is None while it did not run."""

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
    #: The automation condition that materialises it, as Dagster names it; None without one.
    condition: str | None = None

    @property
    def name(self) -> str:
        """The key as text."""
        return "/".join(self.key)


def read_pages(settings: Settings) -> tuple[AssetPage, ...] | None:
    """The page of every asset of this installation; None when its webserver gives none."""
    web = local.running(settings, local.WEBSERVER)
    if web is None:
        return None
    tokens = settings.webserver.tokens
    headers = {"Authorization": f"Bearer {next(iter(tokens.values()))}"} if tokens else {}
    try:
        answer = httpx.post(
            f"{web.url}/graphql", json={"query": _QUERY}, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
        return tuple(map(_page, answer.json()["data"]["assetNodes"]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError, msgspec.ValidationError):
        return None


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
