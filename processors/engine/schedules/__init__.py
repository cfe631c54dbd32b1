"""Schedules: functions that run at slots of the worker's clock instead of for each message."""
