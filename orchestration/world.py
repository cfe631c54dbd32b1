"""What the verbs act through on this machine: the registry of the settings, the supervisor and the workers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import BaseModel

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings
from holdfast.orchestration.rediscovery import adopt_what_runs
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.lifecycle.ports import World


def open_registry(settings: Settings) -> Registry:
    """The registry of the settings, its schema up to date; the caller closes it.

    One that was lost is made anew, and filled from what runs (``orchestration.rediscovery``).
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    registry = Registry(settings.registry)
    registry.migrate()
    adopt_what_runs(settings, registry)
    return registry


def build_world(paths: Paths, registry: Registry) -> World:
    """Everything that deployment and recovery act through, on this machine."""
    return World(
        deployer=Supervisord(paths),
        statuses=lambda processor, slot: ProcessorClient(processor, slot, paths),
        registry=registry,
        paths=paths,
    )


def environment_of(settings: Settings) -> dict[str, str]:
    """Settings as the environment variables that give them again."""
    return dict(_variables("HOLDFAST_", settings))


def _variables(prefix: str, model: BaseModel) -> Iterator[tuple[str, str]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        variable = f"{prefix}{name.upper()}"
        if isinstance(value, BaseModel):
            yield from _variables(f"{variable}__", value)
        elif isinstance(value, tuple | dict):
            yield variable, json.dumps(value)
        elif value is not None:
            yield variable, str(value).lower() if isinstance(value, bool) else str(value)
