"""Alembic executes this module to run the migrations on the connection of ``infra.database.schema``.

Invariants:
    - The connection is inside a transaction. So all migrations and the new version number are committed together, or
      not at all.
"""

from __future__ import annotations

from alembic import context

from holdfast.infra.database import migrations, tables

assert migrations.one_open_incident.table is tables.incidents  # importing `migrations` adds indexes to `tables`

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=tables.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
