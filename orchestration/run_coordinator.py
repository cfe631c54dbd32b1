"""The former place of ``ProcessorRunCoordinator``; a ``dagster.yaml`` of an older Holdfast still names this module."""

from __future__ import annotations

from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator

__all__ = ["ProcessorRunCoordinator"]
