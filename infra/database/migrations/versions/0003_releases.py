"""Adds the table of releases: copied code, topics and stores of each deployed version, and when it last worked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table ``releases``, which has a row for each deployed version of a processor."""
    op.create_table(
        "releases",
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("release_id", sa.String(64), nullable=False),
        sa.Column("code_version", sa.String(255), nullable=False),
        sa.Column("target", sa.String(512), nullable=False),
        sa.Column("folder", sa.Text),
        sa.Column("shape", sa.JSON, nullable=False),
        sa.Column("made_at", MOMENT, nullable=False),
        sa.Column("worked_at", MOMENT),
        sa.PrimaryKeyConstraint("processor", "release_id", name="pk_releases"),
    )
