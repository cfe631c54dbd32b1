"""Adds leases. A lease has the token of the process that holds an apply (executed plan) or incident, and a heartbeat.

The heartbeat's time is by the database's clock. A holder that an older version of Holdfast recorded has no heartbeat,
so it counts as dead.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table ``leases``, and add the columns for token and heartbeat."""
    op.create_table(
        "leases",
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("processor", name="pk_leases"),
    )
    for table in ("applies", "incidents"):
        op.add_column(table, sa.Column("token", sa.BigInteger, nullable=False, server_default=sa.text("0")))
        op.add_column(table, sa.Column("beat_s", sa.Float(53)))
