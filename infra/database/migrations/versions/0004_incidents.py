"""Adds columns to incidents: the chosen remedy, the user's action, the acknowledgement, and the time of a retry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

MOMENT = sa.DateTime(timezone=True)
NOTHING = sa.text("''")


def upgrade() -> None:
    """Add the columns to the table ``incidents``."""
    op.add_column("incidents", sa.Column("remedy", sa.String(16), nullable=False, server_default=NOTHING))
    op.add_column("incidents", sa.Column("action", sa.Text, nullable=False, server_default=NOTHING))
    op.add_column("incidents", sa.Column("acknowledged_by", sa.String(255)))
    op.add_column("incidents", sa.Column("acknowledged_at", MOMENT))
    op.add_column("incidents", sa.Column("acknowledgement", sa.Text, nullable=False, server_default=NOTHING))
    op.add_column("incidents", sa.Column("retried_at", MOMENT))
