"""Adds the table of erasures: which key was erased, as a keyed hash, and the certificate of its copies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table ``erasures``, which has a row for each key that was erased or is being erased."""
    op.create_table(
        "erasures",
        sa.Column("erasure_id", sa.String(255), nullable=False),
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("mark", sa.String(64), nullable=False),
        sa.Column("begun_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("erasure_id", name="pk_erasures"),
    )
    op.create_index("ix_erasures_processor", "erasures", ["processor"])
