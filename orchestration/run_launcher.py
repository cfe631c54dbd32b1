"""The former place of ``LocalRunLauncher``; a ``dagster.yaml`` of an older Holdfast still names this module."""

from __future__ import annotations

from holdfast.orchestration.host.run_launcher import LocalRunLauncher

__all__ = ["LocalRunLauncher"]
