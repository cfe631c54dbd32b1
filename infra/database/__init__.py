"""The registry: incidents, deployments, actions, snapshot claims; the only home of SQLAlchemy."""
