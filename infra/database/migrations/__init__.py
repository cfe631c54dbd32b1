"""The Alembic migrations of the database schema of Holdfast's registry, and indexes that only the migrations need.

``infra.database.schema`` runs the migrations. Downgrades are not supported. The partial unique indexes refuse a second
open incident or apply (execution of a plan) of a processor. The indexes are not in the module ``tables``, because they
name SQLite and Postgres: SQLAlchemy loads the dialect of each database that an index names.
"""

from __future__ import annotations

from sqlalchemy import Index

from holdfast.infra.database import tables

#: Unique index that refuses a second open incident of a processor.
one_open_incident = Index(
    "ux_incidents_one_open",
    tables.incidents.c.processor,
    unique=True,
    sqlite_where=tables.incidents.c.closed_at.is_(None),
    postgresql_where=tables.incidents.c.closed_at.is_(None),
)

#: Unique index that refuses a second open apply (execution of a plan) of a processor.
one_open_apply = Index(
    "ux_applies_one_open",
    tables.applies.c.processor,
    unique=True,
    sqlite_where=tables.applies.c.finished_at.is_(None),
    postgresql_where=tables.applies.c.finished_at.is_(None),
)
