"""Quix Streams with the same function; it runs in a separate environment without this project.

It is tuned where its defaults would slow it down: large producer batches, lz4, deep prefetch.
"""

from __future__ import annotations

import json
import sys
import time

from quixstreams import Application
from quixstreams.dataframe.windows import Count
from quixstreams.state.recovery import RecoveryManager, RecoveryPartition
from quixstreams.state.rocksdb import RocksDBOptions

STATE_KEY = "totals"


def totals(value, state):
    amount = value["amount"]
    seen = state.get(STATE_KEY)
    if seen is None:
        seen = {"count": 1, "total": amount, "min": amount, "max": amount}
    else:
        seen["count"] += 1
        seen["total"] += amount
        if amount < seen["min"]:
            seen["min"] = amount
        if amount > seen["max"]:
            seen["max"] = amount
    state.set(STATE_KEY, seen)
    return {
        "user_id": value["user_id"],
        "count": seen["count"],
        "total": seen["total"],
        "mean": seen["total"] / seen["count"],
        "min": seen["min"],
        "max": seen["max"],
        "ts": value["ts"],
    }


def folded(frame, windows):
    if not windows:
        return frame.apply(totals, stateful=True)
    _, duration, _, grace, emit, *_ = windows.split(":")
    window = frame.tumbling_window(int(duration), int(grace)).agg(value=Count())
    return getattr(window, emit)(closing_strategy="partition")


def count_one(value, state):
    seen = state.get("count", 0) + 1
    state.set("count", seen)
    return seen


def pair(left, right):
    return [left, right]


def joined(application, source, given):
    kind, _, back, _, grace = given["joins"].split(":")
    left = application.dataframe(source)
    if kind == "group":
        return left.group_by("merchant").apply(count_one, stateful=True)
    right = application.topic(given["source"] + "-right", value_deserializer="json", key_deserializer="str")
    right = application.dataframe(right)
    if kind == "stream":
        return left.join_interval(right, on_merge=pair, grace_ms=int(grace), backward_ms=int(back))
    return left.join_asof(right, on_merge=pair, grace_ms=int(grace))


def watch_recovery(seen):
    """Measure the time of Quix Streams' recovery loop, and count the records that the loop reads."""
    loop, apply_one = RecoveryManager._recovery_loop, RecoveryPartition.recover_from_changelog_message

    def timed(self):
        before, began = seen["restored"], time.monotonic()
        result = loop(self)
        if seen["restored"] > before:
            seen["restore_s"] += time.monotonic() - began
        return result

    def counted(self, *arguments, **named):
        seen["restored"] += 1
        return apply_one(self, *arguments, **named)

    RecoveryManager._recovery_loop, RecoveryPartition.recover_from_changelog_message = timed, counted


def main(given):
    seen = {"restored": 0, "restore_s": 0.0}
    if int(given["restore"]):
        watch_recovery(seen)
    cache_mb = int(given["block_cache_mb"])
    application = Application(
        broker_address=given["bootstrap"],
        consumer_group=given["group"],
        auto_offset_reset="earliest",
        commit_interval=float(given["commit_s"]),
        processing_guarantee=given["guarantee"],
        state_dir=given["state_dir"],
        loglevel="WARNING",
        rocksdb_options=RocksDBOptions(block_cache_size=cache_mb << 20) if cache_mb else None,
        consumer_extra_config={"queued.min.messages": 1_000_000, "fetch.wait.max.ms": 50},
        producer_extra_config={
            "compression.type": "lz4",
            "linger.ms": int(given["linger_ms"]),
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 1_000_000,
        },
    )
    source = application.topic(given["source"], value_deserializer="json", key_deserializer="str")
    output = application.topic(given["output"], value_serializer="json", key_serializer="str")
    if given["joins"]:
        joined(application, source, given).to_topic(output)
    else:
        folded(application.dataframe(source), given["windows"]).to_topic(output)
    # Runs usually stop at a number of outputs. With final results or joins, this number is unknown. Then a pause
    # without outputs ends the run.
    silent = ":final:" in given["windows"] or given["joins"]
    application.run(count=0 if given["joins"] else int(given["count"]), timeout=15 if silent else 120)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
