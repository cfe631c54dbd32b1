"""The registry: a SQL database of incidents, deployments, snapshots, plans, applies (executed plans) and releases.

A release is the copied code of a deployed version.
"""
