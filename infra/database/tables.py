"""The tables of the registry's database, for SQLAlchemy.

Invariants:
    - Each processor has at most one open incident and one open apply (execution of a plan), because partial unique
      indexes refuse a second incident or apply (``migrations``).
    - Times are stored in UTC, and are timezone-aware in Python. A time without a time zone is refused.
    - The ``token`` of an incident or apply changes with each new holder. ``beat_s`` is the time of the holder's last
      heartbeat, by the database's clock (``leases``).
    - Every change in this module needs a migration in ``migrations/versions``; a test compares tables and migrations.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """Column type for a timezone-aware time, which also works with SQLite, where times have no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Converts a time for the database: to UTC, and for SQLite without a time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the registry stores timezone-aware times only; {value!r} has no zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Converts a time from the database to a timezone-aware time in UTC."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


incidents = Table(
    "incidents",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("processor", String(255), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("detail", JSON, nullable=False),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("claimed_by", String(255)),
    Column("claimed_at", UtcDateTime),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("closed_at", UtcDateTime),
    Column("outcome", String(16)),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("remedy", String(16), nullable=False, server_default=text("''")),
    Column("action", Text, nullable=False, server_default=text("''")),
    Column("acknowledged_by", String(255)),
    Column("acknowledged_at", UtcDateTime),
    Column("acknowledgement", Text, nullable=False, server_default=text("''")),
    Column("retried_at", UtcDateTime),
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    Column("beat_s", Float(53)),
    sqlite_autoincrement=True,
)

incident_notes = Table(
    "incident_notes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("incident_id", Integer, ForeignKey("incidents.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("step", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("seconds", Float),
)

deployments = Table(
    "deployments",
    metadata,
    Column("processor", String(255), primary_key=True),
    Column("code_version", String(255), nullable=False),
    Column("slots", JSON, nullable=False),
    Column("desired", String(16), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

actions = Table(
    "actions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("verb", String(64), nullable=False),
    Column("subject", String(512), nullable=False),
    Column("who", String(255), nullable=False),
    Column("plan", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("snapshot_id", String(255), primary_key=True),
    Column("table", String(512), nullable=False),
    Column("detail", JSON, nullable=False),
    Column("claimed_at", UtcDateTime, nullable=False),
    Column("iceberg_snapshot_id", BigInteger),
    Column("finished_at", UtcDateTime),
)

plans = Table(
    "plans",
    metadata,
    Column("plan_hash", String(64), primary_key=True),
    Column("processor", String(255), nullable=False),
    Column("verb", String(64), nullable=False),
    Column("plan", Text, nullable=False),
    Column("shown_at", UtcDateTime, nullable=False),
)

applies = Table(
    "applies",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("processor", String(255), nullable=False),
    Column("verb", String(64), nullable=False),
    Column("plan_hash", String(64), nullable=False),
    Column("plan", Text, nullable=False),
    Column("who", String(255), nullable=False),
    Column("holder", String(255)),
    Column("beat_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("outcome", String(16)),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    Column("beat_s", Float(53)),
    sqlite_autoincrement=True,
)

apply_stages = Table(
    "apply_stages",
    metadata,
    Column("apply_id", Integer, ForeignKey("applies.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("stage", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("units", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

#: One row for each processor that a run has ever held (had the right to change). A transaction that begins or ends a
#: hold locks this row. ``token`` is the last token that was issued to a holder.
leases = Table(
    "leases",
    metadata,
    Column("processor", String(255), primary_key=True),
    Column("token", BigInteger, nullable=False),
)

releases = Table(
    "releases",
    metadata,
    Column("processor", String(255), primary_key=True),
    Column("release_id", String(64), primary_key=True),
    Column("code_version", String(255), nullable=False),
    Column("target", String(512), nullable=False),
    Column("folder", Text),
    Column("shape", JSON, nullable=False),
    Column("made_at", UtcDateTime, nullable=False),
    Column("worked_at", UtcDateTime),
)

#: One row for each key that was erased, or whose erasure has begun. ``mark`` is a keyed hash of the key; the key itself
#: is in no column. ``document`` is the certificate as JSON (``processors.lifecycle.plans.certificates``).
erasures = Table(
    "erasures",
    metadata,
    Column("erasure_id", String(255), primary_key=True),
    Column("processor", String(255), nullable=False, index=True),
    Column("mark", String(64), nullable=False),
    Column("begun_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("document", Text, nullable=False),
)
