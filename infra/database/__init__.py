"""The registry: a SQL database of incidents, deployments, snapshots, plans, applies and releases."""
