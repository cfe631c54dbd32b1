"""`holdfast run` and the deployments of `holdfast up`: what is refused, and what stays unchanged."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.infra.deploy.marks import Mark, write_mark
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.embedded import broker
from holdfast.infra.paths import Paths
from holdfast.infra.settings import load_settings
from holdfast.infra.setup.java import NoJava
from holdfast.infra.system.ports import free_port
from holdfast.infra.system.process import is_running, own_identity, start_mark
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.installation import up
from holdfast.orchestration.commands.installation.run import ProcessorDeployed, _refuse_deployed
from holdfast.orchestration.host import local
from holdfast.orchestration.host.local import WebserverPortTaken, workspace_of
from holdfast.orchestration.project.what_up_starts import Found, Started, judged, request_of
from holdfast.processors.engine.serving.endpoint_file import Endpoint, write_endpoint
from holdfast.processors.lifecycle.plans.requests import Deploy, Restart


def deployed(home: Path, pid: int) -> Paths:
    """A home folder with a recorded deployment and the endpoint file of its worker."""
    paths = Paths(home)
    write_mark(paths, "orders", Mark(generation=1, code_version="v1", slots=("0",), desired="deployed"))
    endpoint = Endpoint(
        pid=pid, url="http://127.0.0.1:1", token="t", mark=start_mark(pid) or "", process=str(own_identity())
    )
    write_endpoint(paths.endpoint("orders", "0"), endpoint)
    return paths


def test_a_processor_with_a_deployed_worker_that_lives_is_not_run(tmp_path: Path) -> None:
    paths = deployed(tmp_path, os.getpid())
    with pytest.raises(ProcessorDeployed) as refused:
        _refuse_deployed(paths, "orders")
    assert f"runs as process {os.getpid()}" in refused.value.message
    assert "`holdfast stop orders`" in refused.value.action
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION
    _refuse_deployed(paths, "refunds")


def test_a_deployed_worker_that_ended_is_not_in_the_way(tmp_path: Path) -> None:
    paths = deployed(tmp_path, os.getpid())
    file = paths.endpoint("orders", "0")
    write_endpoint(file, Endpoint(pid=2**31 - 1, url="http://127.0.0.1:1", token="t", mark="1"))
    _refuse_deployed(paths, "orders")


def test_up_starts_the_version_that_is_deployed_and_deploys_only_what_never_was() -> None:
    assert request_of("orders", Found("v2", None, ())) == Deploy("orders")
    assert request_of("orders", Found("v2", "deployed", (), "v1")) == Restart("orders")
    assert request_of("orders", Found("v2", "deployed", (), "v2")) == Restart("orders")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Found("v2", None, ()), None),
        (Found("v2", "deployed", ()), None),
        (Found("v2", "deployed", ("v2",)), "version v2 runs"),
        (Found("v2", "deployed", ("v1",)), "version v1 runs, and v2 is defined; deploy it with `holdfast deploy"),
        (Found("v2", "deployed", ("unknown",)), "version unknown runs"),
        (Found("v2", "stopped", ()), "stopped; start it with `holdfast deploy orders`"),
    ],
)
def test_up_deploys_what_does_not_run_and_replaces_nothing(found: Found, said: str | None) -> None:
    started = judged("orders", found)
    if said is None:
        assert started is None
    else:
        assert started is not None
        assert started.running
        assert said in started.sentence


def test_run_without_a_name_needs_exactly_one_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "holdfast.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_PROJECT")
    assert main(["run"]) == EXIT_BAD_CONFIGURATION
    assert "The settings name 0 processors: none; expected one." in " ".join(capsys.readouterr().err.split())


def test_up_without_a_project_says_what_it_starts_and_offers_one() -> None:
    said = io.StringIO()
    services = {"kafka": "127.0.0.1:1", "dagster": "http://127.0.0.1:2"}
    up._print(load_settings(project=None), Console(file=said, width=200), services, ())
    assert "kafka        127.0.0.1:1" in said.getvalue()
    assert "There is no project here" in said.getvalue()
    assert "Dagster shows fleet, routes" in said.getvalue()
    assert "`holdfast init my_project`" in said.getvalue()


def test_up_in_a_project_tells_what_became_of_each_processor(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("")
    said = io.StringIO()
    deployed = (Started("orders", "version v1 runs", running=True), Started("refunds", "it fails", running=False))
    up._print(load_settings(project=tmp_path), Console(file=said, width=200), {}, deployed)
    assert "✓ orders: version v1 runs" in said.getvalue()
    assert "✗ refunds: it fails" in said.getvalue()
    assert "holdfast query orders --all" in said.getvalue()


def test_a_port_for_the_ui_that_is_taken_is_told_before_dagster_starts(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(WebserverPortTaken, match=f"Port {port} on 127.0.0.1 is in use") as refused:
            local.start_webserver(load_settings(home=tmp_path / "home", cache=tmp_path / "cache"), port=port)
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION


def test_dagster_loads_the_definitions_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('definitions = "shop.definitions"\n')
    settings = load_settings(project=tmp_path)
    local.prepare(settings)
    text = workspace_of(settings).read_text()
    assert "module_name: shop.definitions" in text
    own = text.index("module_name: holdfast.orchestration.recovery_location")
    assert own < text.index("module_name: shop.definitions"), "recovery has a location of its own"
    assert f'working_directory: "{tmp_path}"' in text
    assert workspace_of(load_settings(project=None)) == local.WORKSPACE


def test_dagsters_processes_read_the_project_file_and_workers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.orchestration.world import environment_of, environment_of_services

    (tmp_path / "holdfast.toml").write_text("memory_max_mb = 512\n")
    settings = load_settings(project=tmp_path)
    assert environment_of_services(settings) == {
        "HOLDFAST_PROJECT": str(tmp_path),
        "HOLDFAST_HOME": str(tmp_path / ".holdfast"),
    }
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    of_worker = environment_of(settings)
    assert of_worker["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/of/the/user"
    monkeypatch.delenv("PYTHONPATH")
    assert environment_of(settings)["PYTHONPATH"] == str(tmp_path)
    assert (of_worker["HOLDFAST_PROJECT"], of_worker["HOLDFAST_MEMORY_MAX_MB"]) == ("", "512")
    assert environment_of_services(load_settings(project=None)) == environment_of(load_settings(project=None))


@pytest.mark.slow
def test_down_ends_a_broker_where_java_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`holdfast down` stops the broker by its process id, so it must work even if Java is not found.

    On a busy machine, the search for Java may time out although Java is installed.
    """

    def no_java() -> None:
        raise NoJava("No Java.", action="None.")

    monkeypatch.setattr(broker, "find_java", no_java)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    folder = load_settings().paths.kafka
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        mark = start_mark(process.pid) or ""
        (folder / "broker.json").write_text(json.dumps({"bootstrap": "127.0.0.1:1", "pid": process.pid, "mark": mark}))
        try:
            assert main(["down", "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == {"stopped": ["broker"]}
            assert not is_running(process.pid, mark)
        finally:
            process.kill()
    assert broker.running_broker(folder) is None
