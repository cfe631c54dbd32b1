"""HTTP of a worker: status, metrics, control. Imports ``runtime``."""
