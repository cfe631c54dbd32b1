"""An alias: older versions had ``LocalRunLauncher`` in this module; a ``dagster.yaml`` may still name the module."""

from __future__ import annotations

from holdfast.orchestration.host.run_launcher import LocalRunLauncher

__all__ = ["LocalRunLauncher"]
