"""For a ``dagster.yaml`` of a former version: it names ``KeptSqliteStorage`` here. ``host`` has the code."""

from __future__ import annotations

from holdfast.orchestration.host.sqlite_storage import KeptSqliteStorage

__all__ = ["KeptSqliteStorage"]
