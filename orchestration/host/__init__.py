"""All that touches the private side of Dagster (``dagster._``): launcher, queue, storage, daemon and webserver."""
