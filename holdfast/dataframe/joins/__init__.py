"""Joins, under the import path that Quix Streams uses."""
