"""Alembic's folder: the steps of the registry's schema, which ``infra.database.schema`` runs. There is no way back."""
