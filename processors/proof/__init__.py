"""Tests (proves) the version in the project's files before it is deployed.

The new version and the running version process the last messages in memory, and their results are compared.
"""
