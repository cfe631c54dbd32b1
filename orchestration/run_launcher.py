"""For a ``dagster.yaml`` of a former version: it names ``LocalRunLauncher`` here. ``host`` has the code."""

from __future__ import annotations

from holdfast.orchestration.host.run_launcher import LocalRunLauncher

__all__ = ["LocalRunLauncher"]
