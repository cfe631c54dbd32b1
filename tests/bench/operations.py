"""Measures the load of fifty processors with two hundred stores on Dagster (docs/operations.md).

It measures the loading of the code location, ticks of sensors, pages and events. The definitions, the supervisor with a
program per processor, and the webserver are real. One HTTP server answers in place of all workers.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dagster as dg
import httpx

from holdfast.infra.kafka.embedded.broker import embedded_broker
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import PROJECT, load_settings
from holdfast.orchestration.host import local
from holdfast.orchestration.sensors import recovery
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.registration import find_processor
from tests.parts.fleet import PARTITIONS, PROCESSORS, STORES, Fleet, names, write_definitions

TICKS = 5
#: Each processor has a topic and a processor asset. Each store has four assets: state, changelog, table and table
#: upkeep. One more asset lists orphans (resources without an owner).
ASSETS = PROCESSORS * (2 + 4 * STORES) + 1
#: The query that the lineage page sends for all assets.
LINEAGE = "{ assetNodes { id assetKey { path } groupName kinds dependencyKeys { path } description } }"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-many-") as folder:
        home = Path(folder)
        os.environ |= {
            "HOLDFAST_HOME": str(home / "home"),
            "HOLDFAST_PROCESSORS": write_definitions(home, "many_of_the_bench"),
            "PYTHONPATH": f"{home}:{PROJECT}",
            "HOLDFAST_RECOVERY_ENABLED": "false",
        }
        sys.path.insert(0, str(home))
        settings = load_settings()
        configure_logging("ERROR", "text")
        registry = open_registry(settings)
        fleet = Fleet(settings).start(registry)
        try:
            for measured in (_loading, _ticks, _pages, _topics):
                print(json.dumps(measured(settings, fleet), indent=2), flush=True)
        finally:
            local.stop(settings, local.WEBSERVER)
            fleet.stop()
            registry.close()


def _loading(settings: Any, fleet: Fleet) -> dict[str, Any]:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import holdfast.orchestration.code_location"], cwd=PROJECT, check=True)
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "definitions_s": round(seconds, 2),
        "definitions_cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "definitions_peak_mib": round(used.ru_maxrss / 1024),
    }


def _ticks(settings: Any, fleet: Fleet) -> dict[str, Any]:
    from holdfast.orchestration.definitions import build_definitions

    definitions = build_definitions(settings)
    found: dict[str, Any] = {
        "processors": PROCESSORS,
        "stores": PROCESSORS * STORES,
        "assets": len(definitions.resolve_asset_graph().get_all_asset_keys()),
    }
    local.prepare(settings)
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
        for name in ("processor_recovery", "processor_telemetry"):
            found[name], events = _of_sensor(name, definitions, instance)
        fleet.silent = set(names())
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions
        ) as context:
            began = time.monotonic()
            definitions.resolve_sensor_def("processor_recovery").evaluate_tick(context)
        found["processor_recovery"]["tick_all_silent_s"] = round(time.monotonic() - began, 3)
        fleet.silent = set()
        before, began = _size(settings), time.monotonic()
        for event in events:  # store the events of the telemetry sensor in the same way as the daemon
            instance.report_runless_asset_event(event)
        took = time.monotonic() - began
        size = (_size(settings) - before) / max(1, len(events))
    a_day = round(len(events) * 86_400 / recovery.OBSERVE_EVERY_S)
    found["telemetry"] = {
        "events_a_day": a_day,
        "events_per_s": round(len(events) / took, 1),
        "bytes_an_event": round(size),
        "mib_a_day": round(a_day * size / 2**20),
    }
    return found


def _of_sensor(
    name: str, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> tuple[dict[str, Any], list[Any]]:
    """Measure a sensor's tick, and count the events of its first tick, in which every asset is new."""
    sensor, cursor, seconds, cpu, events = definitions.resolve_sensor_def(name), None, [], [], []
    for _ in range(TICKS):
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions, cursor=cursor
        ) as context:
            began, used = time.monotonic(), time.process_time()
            data = sensor.evaluate_tick(context)
            seconds.append(time.monotonic() - began)
            cpu.append(time.process_time() - used)
        cursor, events = data.cursor, events or list(data.asset_events)
    middle = TICKS // 2
    found = {"tick_s": round(sorted(seconds)[middle], 3), "tick_cpu_s": round(sorted(cpu)[middle], 3)}
    return {**found, "events": len(events)}, events


def _topics(settings: Any, fleet: Fleet) -> dict[str, Any]:
    """Measure the sensor that watches topics, on a real broker with all topics, four partitions each."""
    from holdfast.orchestration.definitions import build_definitions

    broker = embedded_broker(settings)
    address = broker.start()
    os.environ["HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"] = address.bootstrap
    try:
        topics = Topics(address.bootstrap)
        made = 0
        for topology in (find_processor(settings, name).topology for name in names()):
            for source in topology.inputs:
                topics.create(TopicSpec(source.name, PARTITIONS, 1))
            for changelog in topology.changelogs:
                topics.create(TopicSpec(changelog.topic.name, PARTITIONS, 1, dict(changelog.topic.config)))
            made += len(topology.inputs) + len(topology.changelogs)
        with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
            definitions = build_definitions(load_settings())
            return {"topics": made, "topics_watched": _of_sensor("topics_watched", definitions, instance)[0]}
    finally:
        broker.stop()


def _size(settings: Any) -> int:
    return sum(path.stat().st_size for path in settings.paths.dagster.rglob("*.db*"))


def _pages(settings: Any, fleet: Fleet) -> dict[str, Any]:
    began = time.monotonic()
    url = local.start_webserver(settings, timeout_s=300)
    found: dict[str, Any] = {"webserver_ready_s": round(time.monotonic() - began, 2)}
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        answer = httpx.post(f"{url}/graphql", json={"query": LINEAGE}, timeout=120, trust_env=False)
        seconds.append(time.monotonic() - began)
        assert len(answer.json()["data"]["assetNodes"]) == ASSETS
    found["lineage"] = {"s": round(sorted(seconds)[1], 3), "kib": round(len(answer.content) / 1024)}
    return found


if __name__ == "__main__":
    main()
