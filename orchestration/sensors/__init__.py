"""Sensors and schedules of Dagster: they request runs, and report checks without a run."""
