"""Adds the tables for incidents with their timelines, deployments, actions and snapshots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the five tables of schema version 1."""
    op.create_table(
        "incidents",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("opened_at", MOMENT, nullable=False),
        sa.Column("claimed_by", sa.String(255)),
        sa.Column("claimed_at", MOMENT),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("closed_at", MOMENT),
        sa.Column("outcome", sa.String(16)),
        sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ux_incidents_one_open",
        "incidents",
        ["processor"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "incident_notes",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("incident_id", sa.Integer, nullable=False),
        sa.Column("step", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_incident_notes"),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name="fk_incident_notes_incident_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_incident_notes_incident_id", "incident_notes", ["incident_id"])
    _create_records()


def _create_records() -> None:
    op.create_table(
        "deployments",
        sa.Column("processor", sa.String(255), nullable=False),
        sa.Column("code_version", sa.String(255), nullable=False),
        sa.Column("slots", sa.JSON, nullable=False),
        sa.Column("desired", sa.String(16), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("processor", name="pk_deployments"),
    )
    op.create_table(
        "actions",
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("verb", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_actions"),
    )
    op.create_table(
        "snapshots",
        sa.Column("snapshot_id", sa.String(255), nullable=False),
        sa.Column("table", sa.String(512), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("claimed_at", MOMENT, nullable=False),
        sa.Column("iceberg_snapshot_id", sa.BigInteger),
        sa.Column("finished_at", MOMENT),
        sa.PrimaryKeyConstraint("snapshot_id", name="pk_snapshots"),
    )
