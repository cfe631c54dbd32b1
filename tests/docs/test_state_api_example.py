"""The example of a web service reads state in its lifespan.

FastAPI is not in the locks. Its lifespan, requests and responses are those of Starlette, which is there. Where FastAPI
is installed, the example runs with FastAPI, too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.docs.pages import PROJECT, code_blocks
from tests.parts.state_workers import StateWorker, state_workers

EXAMPLE = PROJECT / "docs" / "examples" / "state_api.py"


def example() -> ModuleType:
    found = importlib.util.spec_from_file_location("state_api", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def with_starlette(module: ModuleType) -> Any:
    async def totals(request: Any) -> Any:
        return await module.totals_of(request.path_params["customer"], request)

    return Starlette(lifespan=module.lifespan, routes=[Route("/customers/{customer}", totals)])


def with_fastapi(module: ModuleType) -> Any:
    return module.web_service()


FRAMEWORKS = [with_starlette, *([with_fastapi] if importlib.util.find_spec("fastapi") else [])]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_service_answers_from_the_state(
    framework: Callable[[ModuleType], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    with state_workers(1) as (worker,):
        worker.world.store = "totals"
        worker.world.put("c1", {"orders": 3})
        worker.announce(tmp_path / "run")
        with TestClient(framework(example())) as service:
            found = service.get("/customers/c1")
            assert found.status_code == 200
            assert found.json() == {"customer": "c1", "totals": {"orders": 3}, "age_s": found.json()["age_s"]}
            assert 0.25 <= found.json()["age_s"] < 10
            assert service.get("/customers/nobody").status_code == 404
            worker.fault = lambda target: StateWorker.away("Task totals-0 is being restored.", "7")
            away = service.get("/customers/c1")
            assert (away.status_code, away.headers["Retry-After"]) == (503, "7")
            assert "is being restored" in away.json()["error"]
        assert worker.connections == 1


def test_the_page_shows_the_example() -> None:
    shown = [block.text for block in code_blocks("python") if "lifespan" in block.text]
    assert [each.strip() for each in shown] == [EXAMPLE.read_text(encoding="utf-8").strip()]
