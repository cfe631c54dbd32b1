"""An alias module: ``LocalRunLauncher`` was here in an older Holdfast. A ``dagster.yaml`` may still name it."""

from __future__ import annotations

from holdfast.orchestration.host.run_launcher import LocalRunLauncher

__all__ = ["LocalRunLauncher"]
