"""Queries look up keys in running workers, and in the local state of a stopped worker."""

from __future__ import annotations

import json
import shutil
from typing import Any

import httpx
import pytest

from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS
from holdfast.processors.engine.serving.endpoint_file import read_endpoint
from holdfast.processors.lifecycle.plans.requests import Stop
from tests.parts.operated import PARTITIONS, Operated


def asked(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = main(["query", *words, "--json"])
    printed = json.loads(capfd.readouterr().out)
    ANSWERS["error" if "error" in printed else "query"].validate_python(printed, strict=True)
    return code, printed


def test_keys_are_found_where_they_live_with_the_offsets_that_they_hold(
    operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    group = operated.group
    operated.bring_up()
    operated.feed(keys=30, each=2)
    operated.processed(60)
    code, found = asked(capfd, group, "key-1", "key-2", "nobody")
    assert code == 0
    assert {(row["key"], row["value"], row["slot"]) for row in found["rows"]} == {("key-1", 2, "0"), ("key-2", 2, "0")}
    assert found["from"] == "the running workers"
    assert len(found["places"]) == PARTITIONS
    assert sum(offset for place in found["places"] for offset in place["inputs"].values()) == 60
    code, found = asked(capfd, group, "--store", "counts", "--prefix", "key-2")
    assert {row["key"] for row in found["rows"]} == {"key-2", *(f"key-{number}" for number in range(20, 30))}
    code, found = asked(capfd, group, "--all", "--limit", "7")
    assert (code, len(found["rows"]), found["more"]) == (0, 7, True)
    assert asked(capfd, group, "nobody")[0] == 1
    code, refused = asked(capfd, group, "--store", "countz", "--all")
    assert (code, refused["error"]["type"]) == (3, "PlanRefused")

    # a client without a token may read a worker's status, but must not get values
    endpoint = read_endpoint(operated.settings.paths.endpoint(group, "0"))
    assert endpoint is not None
    body = {"store": "counts", "all": True, "limit": 1}
    assert httpx.post(f"{endpoint.url}/state/read", json=body, trust_env=False).status_code == 401
    tickets = httpx.get(f"{endpoint.url}/maintenance", trust_env=False).json()["commands"]
    assert [each for each in tickets if each["verb"] == "read"] == []

    operated.do(Stop(group))
    code, found = asked(capfd, group, "key-1")
    assert (code, found["from"], [row["value"] for row in found["rows"]]) == (0, "local state", [2])
    assert sum(offset for place in found["places"] for offset in place["inputs"].values()) == 60
    shutil.rmtree(operated.settings.paths.state)
    code, refused = asked(capfd, group, "key-1")
    assert code == 3
    assert f"holdfast deploy {group}" in refused["error"]["action"]
