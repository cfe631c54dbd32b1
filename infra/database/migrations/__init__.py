"""Alembic's folder: how the registry's schema came to be, step by step; see ``infra.database.schema``."""
