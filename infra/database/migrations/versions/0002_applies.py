"""Adds the tables for plans that users have seen, and for applies (executions of plans) with their stages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables of plans and applies (executions of plans), and the table of an apply's stages."""
    op.create_table(
        "plans",
        sa.Column("plan_hash", sa.String(64), nullable=False),
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("verb", sa.String(64), nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("shown_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("plan_hash", name="pk_plans"),
    )
    op.create_table(
        "applies",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("verb", sa.String(64), nullable=False),
        sa.Column("plan_hash", sa.String(64), nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("holder", sa.String(255)),
        sa.Column("beat_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT),
        sa.Column("outcome", sa.String(16)),
        sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("id", name="pk_applies"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ux_applies_one_open",
        "applies",
        ["processor"],
        unique=True,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "apply_stages",
        sa.Column("apply_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("stage", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("units", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("apply_id", "number", name="pk_apply_stages"),
        sa.ForeignKeyConstraint(["apply_id"], ["applies.id"], name="fk_apply_stages_apply_id", ondelete="CASCADE"),
    )
