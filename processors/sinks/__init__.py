"""Sinks that ship with Holdfast: SQL tables, files, HTTP, Iceberg and Redis.

A sink imports the library of its system when it is made, so that an application without it needs no such library.
"""
