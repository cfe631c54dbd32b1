"""The registry: incidents, deployments, snapshots, plans, applies, releases; the only package with SQLAlchemy."""
