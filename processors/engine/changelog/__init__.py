"""The record format, topic names and topic configuration of changelogs.

This package imports no other package of Holdfast than ``infra``.
"""
