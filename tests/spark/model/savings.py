"""What a modelled life does in less time than the product, with the same outcome: thousands of lives are run.

py4j asks the JVM for each name in it at each use, and the JVM then looks through all jars for names that none has. The
answers do not change while a JVM runs, so they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

from holdfast.assets.spark.versions import Versions


def keep_names(patch: pytest.MonkeyPatch) -> None:
    """Keep what py4j was told about classes, packages and static methods."""
    for kind in (JVMView, JavaPackage, JavaClass):
        patch.setattr(kind, "__getattr__", _kept(kind.__getattr__))


def _kept(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        found = ask(self, name)
        if isinstance(found, JavaClass | JavaPackage | JavaMember):
            self.__dict__[name] = found
        return found

    return answer


def versions_of(catalog: Any, table: str) -> Versions:
    """What ``Versions.of`` tells, read by pyiceberg without a query of Spark."""
    metadata = catalog.load_table(tuple(table.split(".")[1:])).metadata
    found = {each.snapshot_id: each for each in metadata.snapshots}
    return Versions(
        {version: dict(each.summary.additional_properties) if each.summary else {} for version, each in found.items()},
        {version: each.parent_snapshot_id for version, each in found.items()},
        {version: each.timestamp_ms / 1000 for version, each in found.items()},
        {name: (each.snapshot_ref_type.name, each.snapshot_id) for name, each in metadata.refs.items()},
    )
