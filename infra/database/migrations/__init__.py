"""Alembic's folder with the migrations of the registry's schema.

``infra.database.schema`` runs them. There is no downgrade.
"""
