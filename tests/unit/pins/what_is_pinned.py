"""Pins values that a refactoring must not change: code versions of deployed processors, hashes of plans, JSON output.

If a processor's ``code_version`` changed although its code is the same, an operator would deploy it again without need.
``test_pins.py`` compares these values with the JSON files in this folder. After an intended change, write the files
again:

    python -m tests.unit.pins.what_is_pinned
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast import Application
from holdfast.orchestration.commands.json_documents import ANSWERS
from holdfast.processors.definitions import RESULTS
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans import requests
from holdfast.processors.lifecycle.verbs.table import decide
from tests.combinations.draw import draw_topology
from tests.combinations.topology import built
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

FOLDER = Path(__file__).parent
#: The number of random topologies. It is so large that each kind of step is in several of them.
DRAWN = 150
GROUP = "pinned"


def version_of(topology: Topology) -> dict[str, str]:
    """The code version of a processor, and a hash of the topology's description.

    The hash also covers parts of the description that do not change the code version.
    """
    described = asdict(topology)
    described.pop("connectors")  # left out, because they are where data goes; no code version contains them
    for store, spec in zip(described["stores"], topology.stores, strict=True):
        store.pop("uses")  # left out, because the store's `columns` have the same facts as text
        store.pop("retracts")  # left out, because it follows from the steps; no code version contains it
        store["timed"] = spec.timed
    text = json.dumps(described, sort_keys=True, default=str)
    return {"version": topology.code_version, "described": hashlib.sha256(text.encode()).hexdigest()[:12]}


def drawn() -> list[dict[str, Any]]:
    """Random declarations of processors, with their code versions.

    The source text of each declaration is stored as well, because a later version of the random generator may draw
    other texts for the same seeds.
    """
    found = [draw_topology(seed) for seed in range(DRAWN)]
    codes = [(each.code(), dict(each.settings)) for each in found]
    return [{"code": code, "settings": settings, **version_of_code(code, settings)} for code, settings in codes]


def version_of_code(code: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The code version of a processor whose declaration is given as code."""
    return version_of(built(code, {**settings, "consumer_group": GROUP, "auto_offset_reset": "earliest"}).topology())


def examples() -> dict[str, dict[str, str]]:
    """The code versions of the processors of the demo."""
    return {name: version_of(_example(name).topology()) for name in RESULTS}


def _example(name: str) -> Application:
    made = import_module(f"holdfast.processors.definitions.{name}").application
    assert isinstance(made, Application)
    return made


@cache
def plans() -> dict[str, str]:
    """By request: the hash of the plan that is made from fixed facts (what a verb reads before it plans).

    Equal facts must always lead to the same hash.
    """
    topology = orders_topology()
    return {repr(request): decide(request, facts, topology).hash for request, facts in _asked(topology)}


def _asked(topology: Topology) -> Iterator[tuple[Any, Any]]:
    runs, down = world_of(topology), stopped(topology)
    name = topology.processor
    yield requests.Provision(name), world_of(topology, topics={})
    yield requests.Deploy(name), runs
    yield requests.Deploy(name, 60.0), down
    yield requests.Scale(name, 3), runs
    yield requests.Stop(name), runs
    yield requests.Restart(name), runs
    yield requests.Rollback(name), runs
    yield requests.Compact(name), runs
    yield requests.Reposition(name), down
    yield requests.Clear(name, ("totals",)), runs
    yield requests.Clear(name, ("totals",), requests.Keys(("a", "b"))), runs
    yield requests.Clear(name, rewind="earliest"), down
    yield requests.Backfill(name, "totals", "local"), down
    yield requests.Backfill(name, "totals", "topic"), down
    yield requests.Restore(name), down
    yield requests.Restore(name, (0,), "changelog"), runs
    yield requests.Adopt(name), runs


def answers() -> dict[str, list[str]]:
    """The fields of each command's ``--json`` output: path and type of each field, read from the output's schema."""
    return {words: sorted(_fields(answer.json_schema(mode="serialization"))) for words, answer in ANSWERS.items()}


def _fields(schema: Mapping[str, Any]) -> set[str]:
    found = {f"${name}{path}" for name, each in schema.get("$defs", {}).items() for path in _paths(each)}
    return found | set(_paths(schema))


def _paths(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if "$ref" in schema:
        yield f"{path}: ${schema['$ref'].rpartition('/')[2]}"
    elif "type" in schema:
        yield f"{path}: {schema['type']}"
    for name, each in schema.get("properties", {}).items():
        yield from _paths(each, f"{path}.{name}")
    for word in ("anyOf", "oneOf", "prefixItems"):
        for each in schema.get(word, ()):
            yield from _paths(each, path)
    for word, shown in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(word), Mapping):
            yield from _paths(schema[word], path + shown)


PINS = {"drawn": drawn, "examples": examples, "plans": plans, "answers": answers}


def pinned(name: str) -> Any:
    """Return the pinned values from `<name>.json` in this folder."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Write all JSON files again."""
    for name, made in PINS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
