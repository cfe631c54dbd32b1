"""The worker: turns, tasks, commit, restore, standbys. Imports all of ``engine`` but ``commands`` and ``serving``."""
