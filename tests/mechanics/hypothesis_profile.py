"""The profile of hypothesis for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine must not fail a property-based test: examples have no deadline, and slow generation is no failure.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")
