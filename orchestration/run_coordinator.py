"""Kept for a ``dagster.yaml`` of an older version, which names ``ProcessorRunCoordinator`` here.

``host`` has the code.
"""

from __future__ import annotations

from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator

__all__ = ["ProcessorRunCoordinator"]
