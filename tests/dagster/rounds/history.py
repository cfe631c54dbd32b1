"""Records all changes of the holders of applies and incidents, by database triggers.

The registry (Holdfast's database) keeps only the present holder. To judge a round, the test needs all changes in the
order of the database's commits, with times of the database's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.infra.database.lease_times import SILENT_S
from tests.parts.postgres import PostgresServer

#: Triggers on three tables of the registry (Holdfast's database). A row of ``history`` is one change of an apply
#: (execution of a plan) or incident, or one finished stage (step of a plan).
_REGISTRY = """
CREATE TABLE history (
    seq bigserial PRIMARY KEY, at double precision NOT NULL DEFAULT EXTRACT(EPOCH FROM clock_timestamp()),
    kind text, id integer, token bigint, holder text, beat_s double precision, ended boolean, word text);
CREATE FUNCTION of_apply() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (kind, id, token, holder, beat_s, ended, word) VALUES
        ('apply', NEW.id, NEW.token, NEW.holder, NEW.beat_s, NEW.finished_at IS NOT NULL, NEW.verb);
    RETURN NULL; END $$;
CREATE FUNCTION of_incident() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (kind, id, token, holder, beat_s, ended, word) VALUES
        ('incident', NEW.id, NEW.token, NEW.claimed_by, NEW.beat_s, NEW.closed_at IS NOT NULL, NEW.kind);
    RETURN NULL; END $$;
CREATE FUNCTION of_stage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (kind, id, word) VALUES ('stage', NEW.apply_id, NEW.stage);
    RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON applies FOR EACH ROW EXECUTE FUNCTION of_apply();
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON incidents FOR EACH ROW EXECUTE FUNCTION of_incident();
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON apply_stages FOR EACH ROW EXECUTE FUNCTION of_stage();
"""
#: A trigger on Dagster's table of runs. Each row of its ``history`` is one status change of a run.
_DAGSTER = """
CREATE TABLE history (seq bigserial PRIMARY KEY, run text, status text, job text);
CREATE FUNCTION of_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' OR NEW.status IS DISTINCT FROM OLD.status THEN
        INSERT INTO history (run, status, job) VALUES (NEW.run_id, NEW.status, NEW.pipeline_name);
    END IF;
    RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION of_run();
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of an apply (execution of a plan) or incident, or one finished stage (step of a plan).

    ``at`` and ``beat_s`` are database times in seconds.
    """

    seq: int
    at: float
    kind: Literal["apply", "incident", "stage"]
    id: int
    token: int | None
    holder: str | None
    beat_s: float | None
    ended: bool | None
    word: str

    @property
    def holding(self) -> str | None:
        """The holder after this change. None once the apply (execution of a plan) or incident has ended."""
        return None if self.ended else self.holder


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One status change of a Dagster run."""

    seq: int
    run: str
    status: str
    job: str


@dataclass(frozen=True, slots=True)
class Held:
    """The time for which a process held an apply (executed plan) or incident. ``until``: None if it still holds it."""

    kind: str
    id: int
    token: int
    holder: str
    since: float
    until: float | None = None


class History:
    """Reads the changes that the triggers of both databases recorded."""

    def __init__(self, server: PostgresServer, registry: str, dagster: str) -> None:
        server.query(_REGISTRY, registry)
        server.query(_DAGSTER, dagster)
        self._registry, self._dagster = server.connection(registry), server.connection(dagster)

    def close(self) -> None:
        self._registry.close()
        self._dagster.close()

    def events(self, after: int = 0) -> list[Event]:
        """Return the changes in Holdfast's registry with a higher number than ``after``."""
        columns = "seq, at, kind, id, token, holder, beat_s, ended, word"
        rows = self._registry.execute(f"SELECT {columns} FROM history WHERE seq > {after} ORDER BY seq").fetchall()
        return [Event(*row) for row in rows]

    def runs(self, after: int = 0) -> list[RunEvent]:
        """Return the changes of Dagster's runs with a higher number than ``after``."""
        select = f"SELECT seq, run, status, job FROM history WHERE seq > {after} ORDER BY seq"
        return [RunEvent(*row) for row in self._dagster.execute(select).fetchall()]

    def now_s(self) -> float:
        """The time of the database's clock, in seconds."""
        ((now,),) = self._registry.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8").fetchall()
        return float(now)


def holds_of(events: Iterable[Event]) -> list[Held]:
    """All holds (times for which a process held an apply or incident), in the order of their start."""
    made: list[Held] = []
    present: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "stage":
            continue
        key = (event.kind, event.id)
        place = present.get(key)
        held = None if place is None else made[place]
        if held is not None and (event.holding, event.token) == (held.holder, held.token):
            continue
        if held is not None and place is not None:
            made[place] = Held(held.kind, held.id, held.token, held.holder, held.since, event.at)
            del present[key]
        if event.holding is not None:
            present[key] = len(made)
            made.append(Held(event.kind, event.id, event.token or 0, event.holding, event.at))
    return made


def broken_rules(events: Sequence[Event], is_dead: Callable[[str], bool]) -> list[str]:
    """Return the violations of the rules for holds (exclusive claims) of one processor.

    ``is_dead`` returns whether a holder was killed or has ended.
    """
    found: list[str] = []
    live: dict[tuple[str, int], Event] = {}
    newest = 0
    for event in events:
        if event.kind == "stage":
            continue
        key = (event.kind, event.id)
        before = live.pop(key, None)
        if event.holding is None and before is not None:
            taker = next((each for each in events if each.seq > event.seq and each.token == event.token), None)
            if taker is not None and taker.id != event.id:
                found += _taken_early(before, taker, event.at, is_dead)
        if event.holding is not None:
            if before is not None and (before.holder, before.token) != (event.holder, event.token):
                found += _taken_early(before, event, event.at, is_dead)
            if before is None or before.token != event.token:
                if (event.token or 0) <= newest:
                    found.append(f"{event} has no new token: {newest} was given out before")
                newest = event.token or 0
            live[key] = event
        if len(live) > 1:
            found.append(f"two holders: {' and '.join(map(str, live.values()))}")
    return found


def _taken_early(before: Event, taker: Event, at: float, is_dead: Callable[[str], bool]) -> list[str]:
    silent_s = at - (before.beat_s or 0.0)
    if silent_s > SILENT_S or is_dead(before.holder or "") or before.holder == taker.holder:
        return []
    return [f"{taker} was taken from {before}, which was silent for {silent_s:.1f} s only, and lives"]
