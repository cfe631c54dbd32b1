"""The life of state: facts, plan, explain, apply. Imports ``audits``, ``snapshots``, ``engine``."""
