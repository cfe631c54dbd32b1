"""Schedules: functions that a worker runs at given times (slots) of its clock, and not for each message."""
