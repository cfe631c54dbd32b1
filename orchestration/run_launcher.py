"""Kept for a ``dagster.yaml`` of an older version, which names ``LocalRunLauncher`` here. ``host`` has the code."""

from __future__ import annotations

from holdfast.orchestration.host.run_launcher import LocalRunLauncher

__all__ = ["LocalRunLauncher"]
