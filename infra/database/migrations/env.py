"""What Alembic runs: the migrations, on the connection that the caller holds its lock on.

Invariants:
    - It opens no connection of its own: ``infra.database.schema`` passes one that is inside a transaction,
      so that all steps and the version mark become visible together or not at all.
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
