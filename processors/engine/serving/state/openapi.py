"""The OpenAPI document of the routes of state."""

from __future__ import annotations

from typing import Any

DOCUMENT: dict[str, Any] = {}
