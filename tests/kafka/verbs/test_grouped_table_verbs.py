"""A typed topic's table and the groups of its rows live through query, export, clear, rebuild, lost disk and audit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.orchestration.cli import main
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Deploy, Everything, Keys, Restore, Stop
from tests.oracles.fold import fold_changelog
from tests.parts.operated import Operated, exported_by

DEFINITION = """
from dataclasses import dataclass

from holdfast import Application, Collect, Count, Mean, Sum
from holdfast.dataframe.windows import Reduce


@dataclass
class Order:
    status: str
    amount: float
    test: bool = False


application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}},
)
orders = application.table(application.topic("{group}-in", value=Order), "orders")
real = orders.filter(lambda order: not order.test, "real")
by = real.group_by("status").aggregate(
    n=Count(), total=Sum("amount"), mean=Mean("amount"), amounts=Collect("amount", limit=2),
    most=Reduce(
        reducer=lambda all, row: sorted([*all, row["amount"]]), initializer=lambda row: [row["amount"]],
        subtractor=lambda all, row: [x for at, x in enumerate(all) if at != all.index(row["amount"])],
    ),
    name="by-status",
)
by.to_stream().to_topic(application.topic("{group}-out"))
"""

#: The stores that the groups depend on.
TOGETHER = {"real", "by-status", "by-status-rows"}
KEYS = 12


def feed(operated: Operated, rows: Mapping[str, Any]) -> None:
    """Send one message for each row; None deletes the row."""
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap, "partitioner": "murmur2_random"})
    for key, row in rows.items():
        producer.produce(f"{operated.group}-in", None if row is None else json.dumps(row).encode(), key.encode())
    assert producer.flush(30) == 0


def row(number: int, turn: int) -> dict[str, Any]:
    return {"status": f"s{(number + turn) % 3}", "amount": number / 10 + turn, "test": number == turn}


def groups_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The expected groups, as plain Python computes them from the newest rows."""
    amounts: dict[str, list[float]] = {}
    for _, each in sorted(rows.items()):
        if not each["test"]:
            amounts.setdefault(each["status"], []).append(each["amount"])
    return {
        status: {"n": len(of), "total": float(sum(map(Fraction, of))), "amounts": of[:2], "most": sorted(of)}
        for status, of in amounts.items()
    }


def stored(operated: Operated, store: str) -> dict[tuple[str, str], Any]:
    """The values of a store by message key and state key, from its changelog."""
    changelog, found = f"{operated.group}-{store}-changelog", {}
    for number, end in operated.topics.settled_end_offsets(changelog).items():
        records = read_range(operated.topics.bootstrap, changelog, number, 0, end)
        for key, value in fold_changelog(records).items():
            if key != META_KEY:
                message_key, state_key = split_key(key)
                found[message_key.decode(), state_key] = decode_value(value)
    return found


def seen(operated: Operated) -> dict[str, Any]:
    rows = {key: each for (key, state), each in stored(operated, "by-status").items() if state == "row"}
    return {key: {name: each[name] for name in ("n", "total", "amounts", "most")} for key, each in rows.items()}


def asked(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    assert main([*words]) == 0
    return capfd.readouterr().out


@pytest.mark.thorough
def test_groups_of_typed_rows_live_through_the_verbs(operated: Operated, capfd: pytest.CaptureFixture[str]) -> None:
    group, verbs = operated.group, operated.verbs
    module = Path(os.environ["PYTHONPATH"]) / f"definition_{group.replace('-', '_')}.py"
    module.write_text(DEFINITION.format(group=group))
    operated.bring_up()
    rows: dict[str, Any] = {}

    def send(changes: Mapping[str, Any]) -> None:
        feed(operated, changes)
        rows.update(changes)
        for key in [key for key, each in rows.items() if each is None]:
            del rows[key]
        operated.wait_for(lambda: seen(operated) == groups_of(rows), "the groups of all rows")

    for turn in range(2):
        send({f"k{number:02}": row(number, turn) for number in range(KEYS)})
    send({"k03": None})

    # A query shows groups as columns. Totals and single items are internal records, which it does not show.
    text = asked(capfd, "query", group, "--store", "by-status", "--all")
    assert "{" not in text
    assert [word for word in ("n", "total", "mean", "amounts", "most") if word not in text] == []
    assert '"amount"' in asked(capfd, "query", group, "k01", "--store", "orders")

    # Verbs refuse to change only a part of these stores, but a key of the table itself may be cleared.
    for request in (
        Clear(group, ("by-status",), Keys(("s1",))),
        Clear(group, ("by-status-rows",), Keys(("k01",))),
        Clear(group, ("real",), Keys(("k01",))),
        Backfill(group, "by-status", "topic"),
    ):
        verdict = verbs.plan(request).verdict
        assert isinstance(verdict, Refused)
        assert f"`holdfast apply clear {group} --all --rewind earliest`" in verdict.action
    before = {store: stored(operated, store) for store in TOGETHER | {"orders"}}
    done = operated.do(Clear(group, ("orders",), Keys(("k01", "k02"))))
    assert {key for key, _ in before["orders"].keys() - stored(operated, "orders").keys()} == {"k01", "k02"}
    assert seen(operated) == groups_of(rows)
    file = next(exported_by(note.text) for note in done.notes if note.stage == "clear_keys")
    operated.do(Restore(group, file=str(file)))
    assert {store: stored(operated, store) for store in before} == before
    send({"k01": None, "k02": row(2, 5)})

    # The workers lose their disk, and restore the stores from the changelogs. The groups are still updated.
    operated.do(Stop(group))
    shutil.rmtree(operated.settings.paths.state)
    operated.do(Deploy(group))
    send({"k04": row(4, 9), "k05": None})
    operated.do(Restore(group, source="changelog"))
    send({"k06": row(6, 9)})

    # The action that the refusals recommend: clear all state, and count all rows of the topic again. Then the groups
    # are again those of all rows.
    before = {store: stored(operated, store) for store in TOGETHER | {"orders"}}
    operated.do(Stop(group))
    feed(operated, {"k07": row(7, 9)})
    rows["k07"] = row(7, 9)
    operated.do(Clear(group, rewind="earliest"))
    assert {store: stored(operated, store) for store in before} == {store: {} for store in before}
    operated.do(Deploy(group))
    operated.wait_for(lambda: seen(operated) == groups_of(rows), "the groups to be counted again")
    send({"k07": row(7, 1)})
    send({"k08": row(8, 4)})
    # Clear all state, but do not read the input again. So only rows that are sent later count.
    operated.do(Stop(group))
    done = operated.do(Clear(group, (), Everything()))
    assert not any("Undo: " in note.text for note in done.notes), "the file can't be put back, so no command says it"
    rows.clear()
    operated.do(Deploy(group))
    send({"k00": row(0, 3), "k09": row(9, 3)})
    send({"k09": row(9, 4), "k00": None})
    audits = verbs.audit(group, ())
    assert {audit.store for audit in audits} >= TOGETHER | {"orders"}
    assert [audit.differences for audit in audits if audit.differences] == []
