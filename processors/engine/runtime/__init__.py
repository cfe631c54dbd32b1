"""The worker: its loop, tasks, commits, restores and standbys. Does not import ``commands`` and ``serving``."""
