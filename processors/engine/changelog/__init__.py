"""The record format, topic names and topic configuration of changelogs. Of Holdfast, it imports only ``infra``."""
