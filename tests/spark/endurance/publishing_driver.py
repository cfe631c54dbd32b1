"""A Spark driver process that publishes snapshots, maintains tables and makes past versions, as Dagster runs do.

``python -m tests.spark.endurance.publishing_driver BOOTSTRAP PROCESSOR`` reads requests from a test, which may also
kill it. Its environment holds the settings.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.infra.errors import HoldfastError
from tests.spark.driver import Driver
from tests.spark.endurance.definition import STORE

#: Maintenance runs with a clock that is this much later, so that untagged versions and branches of killed runs expire.
LATER = timedelta(hours=30)


class PublishingDriver(Driver):
    """The test's side: starts the process and sends it requests."""

    module = "tests.spark.endurance.publishing_driver"


class Publishing:
    """The requests that the process carries out, with the same resources and functions as the assets."""

    def __init__(self, processor: str) -> None:
        from holdfast.assets.publishing import StorePublisher
        from holdfast.infra.settings import load_settings
        from holdfast.orchestration.resources import ClusterResource, LifecycleResource, WarehouseResource
        from holdfast.processors.application.registration import find_processor

        self.processor, cluster = processor, ClusterResource()
        self.lifecycle, self.warehouse = LifecycleResource(), WarehouseResource()
        definition = find_processor(load_settings(), processor)
        self.schema = next(spec.schema for spec in definition.topology.stores if spec.name == STORE)
        paths = self.lifecycle.paths
        self.publisher = StorePublisher(definition, STORE, cluster, paths, self.warehouse, lambda line: None)
        self.warehouse.session.sql("SELECT 1").collect()

    def snapshot(self, wanted: str) -> dict[str, Any]:
        from holdfast.assets.rollouts import clients_of
        from holdfast.assets.times import Window
        from holdfast.processors.snapshots.plan import Wanted

        for client in clients_of(self.processor, self.lifecycle):
            client.checkpoint()
        window = Window("2026-01-01", time.time() + 3600)
        done = self.publisher.publish([window], Wanted(wanted), 7 * 86_400.0).current
        assert done is not None
        return {"id": done.manifest.snapshot_id, "source": done.manifest.source, "committed": done.committed}

    def past(self, key: str, at: float) -> dict[str, Any]:
        from holdfast.assets.spark.past import write_past

        made = write_past(self.warehouse.session, self.processor, STORE, key, at, self.schema)
        return {"id": made.manifest.snapshot_id, "source": made.manifest.source, "committed": made.made}

    def maintain(self) -> dict[str, Any]:
        from holdfast.assets.spark.maintenance import maintain_store
        from holdfast.processors.lifecycle.plans.plan import decode, versions_read

        keep = self.warehouse.maintenance
        open_applies = self.warehouse.registry.journal.applies(open_only=True)
        needed = frozenset().union(*(versions_read(decode(each.plan)) for each in open_applies))
        session, now = self.warehouse.session, datetime.now(UTC) + LATER
        done = maintain_store(session, self.processor, STORE, keep, now, needed)
        names = ("tags_dropped", "versions_expired", "files_compacted")
        return {name: sum(each.numbers()[name] for each in done) for name in names}

    def close(self) -> None:
        self.warehouse.close()
        self.lifecycle.close()


def main(bootstrap: str, processor: str) -> None:
    """Answer requests until the input ends."""
    publishing = Publishing(processor)
    answers: dict[str, Callable[..., Any]] = {
        "snapshot": publishing.snapshot,
        "past": publishing.past,
        "maintain": publishing.maintain,
    }
    _say({"ready": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _say({"answer": answers[request.pop("do")](**request)})
        except HoldfastError as error:
            _say({"error": error.as_dict()})
        except Exception as error:
            _say({"error": {"type": type(error).__name__, "message": str(error)[:3000], "action": ""}})
    publishing.close()


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
