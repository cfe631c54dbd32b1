"""The moving average of a price, with its state in one value or in one value for each number.

`python moving_average.py` compares both: bytes of the changelog, and seconds of a restore. It needs no broker.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import Application, InMemoryCluster, Partition, State

#: The average is that of the newest prices of a key, at most so many.
OVER = 20


def in_one_value(trade: dict, state: State, over: int = OVER) -> dict:
    """All prices are a list under one state key. Each commit writes the whole list of a key."""
    prices = state.append("prices", trade["price"], keep_last=over)
    return {**trade, "average": sum(prices) / len(prices)}


def in_members(trade: dict, state: State, over: int = OVER) -> dict:
    """Each price has a state key of its own, in a ring. A commit writes the prices that are new, and the sum."""
    count, total = state.get("count", 0), state.get("total", 0)
    place = f"price/{count % over:06d}"
    total += trade["price"] - state.get(place, 0)  # the price that leaves the ring
    state.set(place, trade["price"])
    state.set("count", count + 1)
    state.set("total", total)
    return {**trade, "average": total / min(count + 1, over)}


def application(step: Callable[[dict, State], dict] = in_one_value, **options: Any) -> Application:
    """The processor with one of both functions; in production: `application().run()`."""
    app = Application(consumer_group="averages", auto_offset_reset="earliest", **options)
    trades = app.dataframe(app.topic("trades"))
    trades.apply(step, stateful=True, store="prices").to_topic(app.topic("trades-averaged"))
    return app


# -- the comparison ------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """What is measured: prices of an average, keys, messages of each key, and messages of each key in a commit."""

    over: int
    keys: int
    each: int
    in_commit: int


class Cost(NamedTuple):
    """Bytes of the changelog as written, and compacted; its records after that; seconds of a start that restores it."""

    written: int
    compacted: int
    records: int
    restore_s: float


LOADS = (Load(20, 10, 200, 1), Load(20, 10, 200, 20), Load(1_000, 10, 2_000, 1), Load(1_000, 10, 2_000, 200))
#: A load with much state, for the seconds.
LARGE = Load(100, 1_000, 200, 10)
CHANGELOG = "averages-prices-changelog"


def cost(step: Callable[..., dict], load: Load) -> Cost:
    """Runs one of both functions on a cluster in memory. All bytes follow from the load alone."""

    def build() -> Application:
        # The interval is longer than a run: the number of messages alone decides when a commit is due.
        options = {"commit_every": load.keys * load.in_commit, "commit_interval": 10, "loglevel": "ERROR"}
        return application(lambda trade, state: step(trade, state, load.over), **options)

    cluster = InMemoryCluster()
    cluster.create_topic("trades")
    for number in range(load.keys * load.each):
        trade = json.dumps({"price": 1_000 + number % 9_000}).encode()
        cluster.produce("trades", trade, f"share-{number % load.keys:04d}".encode())
    cluster.run(build())
    written, _ = size(cluster)
    cluster.compact(Partition(CHANGELOG, 0), drop_tombstones=True)
    compacted, records = size(cluster)
    begun = time.perf_counter()
    cluster.run(build())  # on an empty disk, without a new message
    return Cost(written, compacted, records, time.perf_counter() - begun)


def size(cluster: InMemoryCluster) -> tuple[int, int]:
    """Returns bytes and number of the changelog's records."""
    records = [record for _, record in cluster.read(CHANGELOG)]
    return sum(len(record.key or b"") + len(record.value or b"") for record in records), len(records)


def main() -> None:
    """Prints the comparison."""
    print("over  keys   each  in a commit | one value: written compacted records restore s | members: the same")
    for load in (*LOADS, LARGE):
        costs = [cost(step, load) for step in (in_one_value, in_members)]
        row = " | ".join(f"{c.written:>11,} {c.compacted:>9,} {c.records:>7,} {c.restore_s:.2f}" for c in costs)
        print(f"{load.over:>5,} {load.keys:>5,} {load.each:>5,} {load.in_commit:>4} | {row}")


if __name__ == "__main__":
    main()
