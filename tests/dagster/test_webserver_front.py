"""Dagster's webserver behind the front, as `holdfast webserver` runs it: hostile requests have no effect."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.infra.settings import PROJECT
from holdfast.infra.system.ports import free_port
from holdfast.infra.system.process import group_members
from holdfast.orchestration.host.dagster_config import check_dagster_config
from tests.parts.open_ports import listening

PATIENCE_S = 240.0
TOKEN = "0123456789abcdef-of-anna"
JOBS = """
import dagster as dg

@dg.op(config_schema={"dry_run": bool})
def stop():
    pass

@dg.job
def stop_processor():
    stop()

@dg.job(partitions_def=dg.StaticPartitionsDefinition(["one"]))
def each_part():
    pass

defs = dg.Definitions(jobs=[stop_processor, each_part])
"""
#: No daemon runs, so runs stay in the queue.
INSTANCE = """
telemetry: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: QueuedRunCoordinator}
"""
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": "of_the_test"}


@dataclass
class Webserver:
    """A running `holdfast webserver` process."""

    port: int
    home: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self.home))

    def runs(self) -> list[dg.DagsterRun]:
        with self.instance() as instance:
            return list(instance.get_runs())

    def ask(self, query: str, **variables: Any) -> Any:
        body = {"query": query, "variables": variables}
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = httpx.post(f"{self.url}/graphql", json=body, headers=headers, timeout=60).json()
        assert not answer.get("errors"), answer
        return answer["data"]

    def raw(self, *lines: str, body: str = "") -> bytes:
        """The server's answer to a raw request that no normal client would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            line.sendall("\r\n".join([*lines, "Connection: close", "", body]).encode())
            answer = b""
            while more := line.recv(65536):
                answer += more
        return answer


@contextmanager
def started(folder: Path, **settings: str) -> Iterator[Webserver]:
    """Start the command on a free port, with one code location."""
    (folder / "jobs_of_the_test.py").write_text(JOBS)
    location = {"relative_path": str(folder / "jobs_of_the_test.py"), "location_name": "of_the_test"}
    (folder / "workspace.yaml").write_text(json.dumps({"load_from": [{"python_file": location}]}))
    home = folder / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    check_dagster_config(home, folder / "workspace.yaml")
    port = free_port()
    command = [sys.executable, "-m", "holdfast.orchestration.cli", "webserver", "-p", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-w", str(folder / "workspace.yaml")],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(PROJECT),
                "DAGSTER_HOME": str(home),
                "HOLDFAST_HOME": str(folder / "home"),
                **{f"HOLDFAST_WEBSERVER__{name}": value for name, value in settings.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    served = Webserver(port, home, process, folder / "log")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < deadline, served.log.read_text()[-3000:]
            try:
                httpx.get(served.url, timeout=60)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def webserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webserver]:
    """A webserver that asks for tokens and accepts an additional host name."""
    tokens = json.dumps({"anna": TOKEN})
    with started(tmp_path_factory.mktemp("front"), TOKENS=tokens, HOSTS='["dagster.example.com"]') as served:
        yield served


def launching(**parameters: Any) -> dict[str, Any]:
    config = {"ops": {"stop": {"config": {"dry_run": False}}}}
    selector = {**SELECTOR, "jobName": "stop_processor"}
    return {"p": {"selector": selector, "runConfigData": json.dumps(config), **parameters}}


def test_hostile_requests_launch_and_read_nothing(webserver: Webserver) -> None:
    """Each request carries a valid token, as a signed-in browser sends it on behalf of a hostile page."""
    before = len(webserver.runs())
    body = json.dumps({"query": LAUNCH, "variables": launching()})
    own, token = f"Host: 127.0.0.1:{webserver.port}", f"Authorization: Bearer {TOKEN}"
    length, as_json = f"Content-Length: {len(body)}", "Content-Type: application/json"
    hostile = {
        "a form's content type": [own, token, "Content-Type: text/plain", length],
        "a content type that contains JSON": [own, token, "Content-Type: text/plain; application/json", length],
        "GraphQL's own content type": [own, token, "Content-Type: application/graphql", length],
        "a foreign page": [own, token, as_json, length, "Origin: http://evil.example.com"],
        "a page without origin": [own, token, as_json, length, "Origin: null"],
        "another port of this machine": [own, token, as_json, length, "Origin: http://127.0.0.1:1"],
        "a foreign page of an older browser": [own, token, as_json, length, "Sec-Fetch-Site: cross-site"],
        "a name that was bound to this machine": ["Host: evil.example.com", token, as_json, length],
        "two hosts": [own, "Host: evil.example.com", token, as_json, length],
        "no host": [token, as_json, length],
        "no token": [own, as_json, length],
        "a wrong token": [own, f"{token}x", as_json, length],
        "a proxy's header": [own, "X-Forwarded-User: anna", as_json, length],
        "a proxy's address": [own, "X-Forwarded-For: 10.0.0.1", "X-Forwarded-User: anna", as_json, length],
        "a forged session": [own, "Cookie: holdfast_session=anna.99999999999.00", as_json, length],
        "a foreign host in the line": ["Host: evil.example.com", token, as_json, length],
    }
    for what, headers in hostile.items():
        answer = webserver.raw("POST /graphql HTTP/1.1", *headers, body=body)
        status = answer.split(b" ", 2)[1:2]
        assert status[0][:1] == b"4", (what, answer[:300])
        assert b"LaunchRunSuccess" not in answer, what
    query = httpx.QueryParams({"query": LAUNCH, "variables": json.dumps(launching())})
    for line in (
        f"GET /graphql?{query} HTTP/1.1",
        f"HEAD /graphql?{query} HTTP/1.1",
        f"GET /%67raphql?{query} HTTP/1.1",
    ):
        assert webserver.raw(line, own, token, "Accept: */*").startswith(b"HTTP/1.1 405"), line
    assert len(webserver.runs()) == before


def test_a_foreign_name_reads_no_page_file_or_log(webserver: Webserver) -> None:
    for path in ("/", "/runs", "/server_info", "/logs/x", "/download_debug/x", "/notebook", "/graphql", "/favicon.png"):
        for headers in ({"host": "evil.example.com"}, {"origin": "http://evil.example.com"}):
            answer = httpx.get(f"{webserver.url}{path}", headers={"authorization": f"Bearer {TOKEN}", **headers})
            assert answer.status_code == 403, path
            assert "dagster" not in answer.text.lower().replace("dagster.example.com", ""), path
        without = httpx.get(f"{webserver.url}{path}", headers={"accept": "*/*"})
        assert without.status_code in (401, 405), path


def test_subscriptions_are_for_this_servers_pages(webserver: Webserver) -> None:
    url, own = f"ws://127.0.0.1:{webserver.port}/graphql", {"authorization": f"Bearer {TOKEN}"}
    for headers in ({**own, "origin": "http://evil.example.com"}, {**own, "sec-fetch-site": "cross-site"}, {}):
        with pytest.raises(InvalidStatus):
            connect(url, additional_headers=headers, open_timeout=60)
    subscription = "subscription { locationStateChangeEvents { event { message } } }"
    protocol: Any = ["graphql-ws"]
    with connect(url, additional_headers=own, subprotocols=protocol, open_timeout=60) as talking:
        talking.send(json.dumps({"type": "connection_init"}))
        assert json.loads(talking.recv(timeout=60)) == {"type": "connection_ack"}
        talking.send(json.dumps({"type": "start", "id": "1", "payload": {"query": subscription}}))
        talking.send(json.dumps({"type": "stop", "id": "1"}))


def test_a_run_is_signed_by_who_launched_it(webserver: Webserver) -> None:
    """The tag is always the authenticated user. A forged tag of the request is overwritten."""
    forged = {"executionMetadata": {"tags": [{"key": "user", "value": "root"}, {"key": "team", "value": "a"}]}}
    run = webserver.ask(LAUNCH, **launching(**forged))["launchRun"]["run"]["runId"]
    plain = webserver.ask(LAUNCH, **launching())["launchRun"]["run"]["runId"]
    part = {"selector": {"repositorySelector": SELECTOR, "partitionSetName": "each_part_partition_set"}}
    done = webserver.ask(BACKFILL, p={**part, "partitionNames": ["one"], "tags": [{"key": "user", "value": "root"}]})
    with webserver.instance() as instance:
        for each in (run, plain):
            found = instance.get_run_by_id(each)
            assert found is not None
            assert found.tags["user"] == "anna"
        backfill = instance.get_backfill(done["launchPartitionBackfill"]["backfillId"])
        assert backfill is not None
        assert backfill.tags["user"] == "anna"
    said = webserver.log.read_text()
    assert "change=launchRun" in said
    assert "who=anna" in said
    assert TOKEN not in said


def test_only_the_front_listens(webserver: Webserver) -> None:
    """The code server listens on a socket file; no other process of the installation has a port."""
    pids = group_members(webserver.process.pid)
    assert len(pids) >= 2, "the webserver and its code server"
    assert listening(pids) == {webserver.port: "127.0.0.1"}


def test_no_process_shows_the_token(webserver: Webserver) -> None:
    for pid in group_members(webserver.process.pid):
        assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("words", [["-h", "0.0.0.0"], ["--host", "192.0.2.1"], ["--path-prefix", "/dagster"]])
def test_it_does_not_start_where_anybody_could_use_it_or_links_lead_elsewhere(words: list[str], tmp_path: Path) -> None:
    from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
    from holdfast.orchestration.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_HOME", str(tmp_path))
        patch.setenv("DAGSTER_HOME", str(tmp_path))
        assert main(["webserver", *words]) == EXIT_BAD_CONFIGURATION
