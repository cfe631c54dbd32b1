"""Plans and applies changes of processors, after explaining them. Imports ``audits``, ``snapshots`` and ``engine``."""
