"""What both clients do in the same way: their arguments, and the questions of their methods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.infra.clock import SystemClock
from holdfast.infra.paths import Paths
from holdfast.processors.client.answers import StateAnswer, answer_of
from holdfast.processors.client.conversation import Known
from holdfast.processors.client.errors import StateClientWrong
from holdfast.processors.client.questions import (
    ENTRIES_MAX,
    Batch,
    Demands,
    Key,
    Question,
    about_key,
    about_many,
    milliseconds_of,
    name_of,
)
from holdfast.processors.client.replies import Settled
from holdfast.processors.client.workers import GivenWorkers, LocalWorkers, Workers
from holdfast.processors.engine.queries.errors import StateAway

#: Default of ``timeout_s``.
TIMEOUT_S = 10.0


def known_to(
    processor: str, urls: Sequence[str] | None, token: str | None, home: str | Path | None, timeout_s: float
) -> Known:
    """Checks the arguments of a client, and returns what its conversations share. Raises StateClientWrong."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < float("inf"):
        raise StateClientWrong(
            f"`timeout_s` is {timeout_s!r}; expected seconds above 0.", action="Pass, for example, timeout_s=10."
        )
    return Known(_workers(processor, urls, token, home), SystemClock(), float(timeout_s))


def _workers(processor: str, urls: Sequence[str] | None, token: str | None, home: str | Path | None) -> Workers:
    if (urls is None) != (token is None):
        raise StateClientWrong(
            "The client has only one of `urls` and `token`; expected both, or none for workers of this machine.",
            action="Pass `urls` and `token`. `HOLDFAST_SERVING__STATE_TOKEN` of the workers sets their token.",
        )
    if urls is not None and token is not None:
        if not token or not token.isascii() or not token.isprintable():
            raise StateClientWrong(
                "`token` is empty or has characters that no token has.",
                action="Pass the workers' `HOLDFAST_SERVING__STATE_TOKEN` unchanged.",
            )
        return GivenWorkers(urls, token)
    if not processor:
        raise StateClientWrong(
            "The client has neither a processor's name nor `urls`.",
            action='Pass the consumer group, for example StateClient("shop").',
        )
    if home is not None:
        return LocalWorkers(Paths(Path(home).absolute()).run, processor)
    # loaded here, because to load the settings takes longer than all other imports of a client
    from holdfast.infra.settings import load_settings

    return LocalWorkers(load_settings().paths.run, processor)


def key_question(
    store: str, key: Key, state_key: str | None, prefix: str | None, page: str | None, demands: Demands
) -> Question:
    """The question of ``key`` and ``get``. Raises QueryWrong."""
    params = (("state_key", state_key), ("prefix", prefix), ("page", page), ("limit", str(ENTRIES_MAX)))
    return about_key("keys", store, key, params, demands)


def windows_question(
    store: str, key: Key, start: int | datetime | None, end: int | datetime | None, demands: Demands
) -> Question:
    """The question of ``windows``. Raises QueryWrong."""
    times = ("from", milliseconds_of(start)), ("to", milliseconds_of(end)), ("limit", str(ENTRIES_MAX))
    return about_key("windows", store, key, times, demands)


def batches(known: Known, store: str, keys: Sequence[Key], demands: Demands) -> list[Batch]:
    """The questions of ``many``: each one goes to the worker that probably has its keys. Raises QueryWrong."""
    owners = [known.owners.find(store, name_of(key)) for key in keys]
    return about_many(store, keys, [None if each is None else each.url for each in owners], demands)


def rows_of_batch(known: Known, batch: Batch, keys: Sequence[Key], settled: Settled) -> dict[int, StateAnswer]:
    """The answers of one question of ``many``, by the places of their keys. Raises StateAway."""
    rows = settled.document.get("rows")
    if not isinstance(rows, list) or len(rows) != len(batch.at):
        raise StateAway(f"The answer about {len(batch.at)} keys is no document of a worker.")
    found = {at: answer_of(row, keys[at], settled.sent_at) for at, row in zip(batch.at, rows, strict=True)}
    names = {each.name: each.url for each in known.workers.known() if each.name}
    for at, answer in found.items():
        if answer.position is not None:
            store, key = batch.question.store, name_of(keys[at])
            known.owners.learn_key(store, key, answer.position, names.get(answer.position.worker))
    return found


def stores_of(settled: Settled) -> list[dict[str, Any]]:
    """The list of stores in an answer. Raises StateAway."""
    stores = settled.document.get("stores")
    if not isinstance(stores, list):
        raise StateAway("The answer about the stores is no document of a worker.")
    return stores


def check_open(*, closed: bool) -> None:
    """Raises StateClientWrong if the client was closed."""
    if closed:
        raise StateClientWrong(
            "A query was made with a client that is closed.",
            action="Make the queries inside the `with` block of the client, or before `close`.",
        )
