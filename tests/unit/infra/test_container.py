"""Dockerfile, compose.yaml and the mounted files agree with each other and with the code.

No container engine is needed.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings
from holdfast.orchestration.foreground import follow, main, scrape_targets
from tests.tidy.test_settings_documented import variables

PROJECT = Path(__file__).resolve().parents[3]
DOCKERFILE = (PROJECT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS = {name for name, _, _ in variables(Settings, "HOLDFAST_")}


def stages() -> dict[str, str]:
    parts = re.split(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, flags=re.M)
    return dict(zip(parts[2::3], parts[3::3], strict=True))


def test_both_targets_run_as_a_user_without_rights_and_tell_their_health() -> None:
    assert set(stages()) == {"wheel", "base", "worker", "platform"}
    for target in ("worker", "platform"):
        assert re.search(r"^USER 10001$", stages()[target], re.M)
        assert "HEALTHCHECK" in stages()[target]
        assert not re.search(r"^USER (root|0)", DOCKERFILE, re.M)
    assert "--uid 10001" in stages()["base"]


def test_the_build_copies_what_the_wheel_is_built_from() -> None:
    copied = {word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]}
    assert all((PROJECT / name).exists() for name in copied)
    links = {path.readlink().parts[-1] for path in (PROJECT / "holdfast").iterdir() if path.is_symlink()}
    assert links <= copied
    kept = {line.removeprefix("!") for line in (PROJECT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert kept == copied


def test_no_image_floats_on_its_newest_version() -> None:
    images = [service["image"] for service in SERVICES.values() if "image" in service]
    assert [image for image in images if not re.search(r":v?\d+(\.\d+)*(-\w+)?$", image)] == []


def test_every_part_of_an_installation_is_there_and_waits_for_what_it_needs() -> None:
    parts = {"kafka", "postgres", "seaweedfs", "buckets", "platform", "prometheus", "grafana"}
    assert set(SERVICES) == parts
    needed = {name: set(service.get("depends_on", ())) for name, service in SERVICES.items()}
    assert needed["platform"] == {"kafka", "postgres", "buckets"}
    assert set().union(*needed.values()) <= parts
    for name in ("kafka", "postgres", "seaweedfs"):
        assert "healthcheck" in SERVICES[name]


def test_what_is_mounted_exists() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) >= 4
    assert [mount for mount in files if not (PROJECT / mount).is_file()] == []
    assert {mount for mount in mounts if not mount.startswith("./")} == set(COMPOSE["volumes"])


def test_ports_are_published_for_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_the_platform_gets_settings_that_exist_and_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = SERVICES["platform"]["environment"]
    ours = {name: value for name, value in given.items() if name.startswith("HOLDFAST_")}
    fixed = re.findall(r"(HOLDFAST_\w+)=", DOCKERFILE)
    assert {*ours, *fixed} <= SETTINGS
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    settings = Settings()
    assert settings.checkpoints.options["client_kwargs"]["endpoint_url"] == settings.warehouse.s3_endpoint
    assert settings.checkpoint_store.startswith("s3://checkpoints/")
    assert settings.warehouse.on_s3
    keys = json.loads((PROJECT / "infra/container/s3.json").read_text())["identities"][0]["credentials"][0]
    assert keys == {"accessKey": settings.warehouse.s3_access_key, "secretKey": settings.warehouse.s3_secret_key}
    created = re.findall(r"CREATE DATABASE (\w+)", (PROJECT / "infra/container/databases.sql").read_text())
    assert {settings.catalog.rsplit("/", 1)[1], settings.registry.rsplit("/", 1)[1]} == set(created)
    assert SERVICES["postgres"]["environment"]["POSTGRES_DB"] == given["DAGSTER_POSTGRES_DB"]
    asked = set(re.findall(r"env: (DAGSTER_\w+)", (PROJECT / "infra/dagster/production.yaml").read_text()))
    assert asked <= set(given)


def test_prometheus_reads_the_targets_that_the_platform_writes(tmp_path: Path) -> None:
    home = re.search(r"HOLDFAST_HOME=(\S+)", DOCKERFILE)
    assert home is not None
    scraped = yaml.safe_load((PROJECT / "infra/container/prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["file_sd_configs"][0]["files"] == [str(Paths(Path(home[1])).run / "scrape-targets.json")]
    assert SERVICES["prometheus"]["network_mode"] == "service:platform"

    paths = Paths(tmp_path)
    paths.run.mkdir()
    (paths.run / "fleet-0.json").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:4711", "token": "x"}))
    (paths.run / "routes-0.json").write_text("{")  # incomplete JSON: the worker is still writing this file
    follow(paths, lambda: True)
    written = paths.run / "scrape-targets.json"
    assert json.loads(written.read_text()) == [{"targets": ["127.0.0.1:4711"]}]
    # scrape-targets.json is in the same folder and must not count as a worker
    assert scrape_targets(paths.run) == [{"targets": ["127.0.0.1:4711"]}]
    (paths.run / "fleet-0.json").unlink()
    follow(paths, lambda: True)
    assert json.loads(written.read_text()) == []


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (503, 1), (None, 1)])
def test_the_check_of_the_platform_asks_its_page(status: int | None, code: int) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status or 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        port = server.server_port
        if status is not None:
            threading.Thread(target=server.handle_request).start()
            assert main(["--check", "--port", str(port)]) == code
    if status is None:
        assert main(["--check", "--port", str(port)]) == code


def test_the_command_of_the_platform_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [SERVICES["platform"]["command"], json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[-1])]
    for command in commands:
        assert command[:3] == ["python", "-m", "holdfast.orchestration.foreground"]
        with pytest.raises(SystemExit) as ended:
            main([*command[3:], "--help"])
        assert ended.value.code == 0
    assert "--production" in capsys.readouterr().out
