"""The audit of a snapshot as a Dagster check. A planted difference fails it, with keys and a repair plan."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.checks.audits import COPIES_EQUAL, audit_check
from holdfast.orchestration.demo.verification import copies_checked
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import find_processor
from holdfast.processors.audits.comparison import Side
from tests.auditing import changelog_key, folded, manifest_of, placed, publish, stored
from tests.parts.operated import Operated

KEYS = 30


def check(operated: Operated) -> dg.AssetCheckEvaluation:
    """The result of the check, run alone as from its page."""
    definition = find_processor(operated.settings, operated.group)
    key = keys.snapshot_key(operated.group, "counts")
    definitions = dg.Definitions(
        assets=[dg.AssetSpec(key)], asset_checks=[audit_check(definition)], resources=build_resources()
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    (found,) = result.get_asset_check_evaluations()
    assert found.check_name == COPIES_EQUAL
    return found


def told(found: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: value.value for name, value in found.metadata.items()}


@pytest.fixture
def counting(operated: Operated) -> Operated:
    operated.bring_up()
    operated.feed(keys=KEYS, each=1)
    operated.processed(KEYS)
    return operated


def test_a_snapshot_is_proved_and_what_is_planted_later_is_shown(counting: Operated) -> None:
    early = check(counting)
    assert (early.passed, early.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "has no tables yet" in str(early.description)

    parts = placed(counting)
    pairs = folded(counting, parts)
    publish(counting.settings, counting.group, pairs, manifest_of(counting.group, parts, pairs))
    proved = check(counting)
    assert (proved.passed, proved.description) == (True, f"All copies are equal; keys: {KEYS}, partitions: 2.")
    figures = told(proved)
    assert (figures["live_keys"], figures["keys_differing"], figures["partitions_compared"]) == (KEYS, 0, 2)
    assert figures["store_fingerprint"] == figures["changelog_fingerprint"] == figures["warehouse_fingerprint"]
    # the demo reads the fingerprints of the copies from these figures
    copies = copies_checked({counting.group: {name: str(value) for name, value in figures.items()}})[counting.group]
    assert {each.hex for each in copies.values()} == {figures["store_fingerprint"]}
    assert set(copies) == set(Side)
    assert figures["heat_map"].startswith("![partitions by buckets](data:image/svg+xml;base64,")
    assert "All buckets equal." in figures["heat_map"]
    assert "differing_keys" not in figures

    wrong = [(number, key, stored(77) if key == changelog_key("key-3") else value) for number, key, value in pairs]
    publish(counting.settings, counting.group, wrong, None)
    found = check(counting)
    figures = told(found)
    assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.ERROR, True)
    assert "1 key differs in the warehouse only" in str(found.description)
    (row,) = figures["differing_keys"].records
    assert (row.data["key"], row.data["store"], row.data["changelog"], row.data["warehouse"]) == (
        "key-3",
        "1",
        "1",
        "77",
    )
    assert "materialise warehouse/" in figures["repair_plan"]
    assert "1 of 512 buckets" in figures["heat_map"]
