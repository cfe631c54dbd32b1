"""Sensors and schedules of Dagster: what asks for runs, and what reports checks without one."""
