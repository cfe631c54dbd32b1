"""The folder with the Alembic migrations of the registry's schema.

``infra.database.schema`` runs the migrations. Downgrades are not supported.
"""
