"""All that touches the private side of Dagster (``dagster._``): opening, daemon, front, launcher and upkeep."""
