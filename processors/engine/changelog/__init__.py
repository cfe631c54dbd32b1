"""The record format, topic names and topic configuration of changelogs. Imports only ``infra``."""
