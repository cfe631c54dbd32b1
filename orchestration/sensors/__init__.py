"""Dagster's sensors and schedules. They request runs, and report results of asset checks without a run."""
