"""Audits: whether store, changelog and warehouse hold the same, and if not, which keys differ and what mends them."""
