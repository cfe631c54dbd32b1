"""Runs the migrations for Alembic, on the caller's locked connection.

Invariants:
    - ``infra.database.schema`` passes a connection inside a transaction. All steps and the version mark become visible
      together, or not at all.
"""

from __future__ import annotations

from alembic import context

from holdfast.infra.database.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
