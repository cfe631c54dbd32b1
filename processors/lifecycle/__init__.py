"""Changes of processors by plan: read facts, plan, explain, apply. Imports ``audits``, ``snapshots``, ``engine``."""
