"""Functions that generated topologies use: deterministic plain Python, so every schedule gives the same results.

A message's value is a dict with the fields ``n`` (its number), ``v`` (a number), ``h`` and ``g`` (other keys) and ``d``
(equal for duplicates). Functions keep these fields, so that any step can follow any other step.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from holdfast import NotFound, State, message_context
from holdfast.sinks import BatchingSink, SinkBatch

Value = dict[str, Any]


class Record(msgspec.Struct):
    """A message's value as an instance; steps read its fields as they read those of a dict."""

    n: Any
    v: Any
    h: Any
    g: Any
    d: Any


class Spoilt(Exception):
    """Raised by a function for messages that must fail."""


# -- functions of a value ----------------------------------------------------------------------------------------------


def marked(value: Value) -> Value:
    """Returns a new dict with one more field."""
    return {**value, "a": value.get("a", 0) + 1}


def changed(value: Value) -> Value:
    """Changes the object in place and returns it."""
    value["m"] = value.get("m", 0) + 1
    return value


def touched(value: Value) -> None:
    """Changes the value in place, for ``update``."""
    value["u"] = value.get("u", 0) + 1


def most(value: Value) -> bool:
    """Keeps most messages."""
    return bool(value["n"] % 5)


def halves(value: Value) -> list[Value]:
    """Returns two values for each value."""
    return [{**value, "half": half} for half in (0, 1)]


def spoilt(value: Value) -> Value:
    """Raises for some messages."""
    if value["n"] % 11 == 7:
        raise Spoilt(value["n"])
    return value


def with_key(value: Value, key: Any, timestamp: int, headers: Any) -> Value:
    """Adds the message's key, timestamp and headers to the value."""
    shown = key.hex() if isinstance(key, bytes) else key
    return {**value, "k": shown, "t": timestamp, "x": [[name, (raw or b"").hex()] for name, raw in headers or ()]}


def present(value: Value | None) -> bool:
    """Whether a value is not None; a table's stream of changes has None for a deletion."""
    return value is not None


def shaped(value: Any) -> Value:
    """Turns the result of a window or an aggregation into a value with the usual fields."""
    number = value.get("start", 0) // 10 if isinstance(value, dict) else 0
    return {"n": number, "v": number % 17, "h": f"k{number % 3}", "g": f"k{number % 2}", "d": number % 4, "w": value}


def later(value: Value, key: Any, timestamp: int, headers: Any) -> int:
    """Returns another event time, computed from the message alone."""
    return timestamp + value["n"] % 3


def unmoved(value: Value, key: Any, timestamp: int, headers: Any) -> int:
    """Returns the message's own event time unchanged."""
    return timestamp


def of_value(value: Any, headers: Any, timestamp: int, kind: int) -> int:
    """A timestamp extractor that returns the record's own timestamp, so it makes no equal times."""
    return int(timestamp)


def length(value: Value) -> int:
    """Returns a small number computed from a value."""
    return len(str(value["n"]))


def other_key(value: Value) -> bytes:
    """Returns another key for ``to_topic``."""
    return f"k{value['n'] % 3}".encode()


def third(value: Value) -> str:
    """Returns a key for ``group_by`` that is no field of the value."""
    return f"k{value['n'] % 3}"


def with_row(total: int, row: Value) -> int:
    """Adds a row to the total of a group."""
    return total + int(row["n"])


def of_row(row: Value) -> int:
    """Starts the total of a group with its first row."""
    return int(row["n"])


def without_row(total: int, row: Value) -> int:
    """Subtracts a row from the total of a group."""
    return total - int(row["n"])


def as_row(group: Value) -> Value:
    """Turns the aggregates of a group into a row with the usual fields."""
    number = int(group["s"])
    return {
        "n": number,
        "v": number % 17,
        "h": f"k{number % 3}",
        "g": f"k{number % 2}",
        "d": group["c"] % 4,
        "w": group,
    }


def relabelled(value: Value, key: Any, timestamp: int, headers: Any) -> list[tuple[str, Any]]:
    """Returns headers for ``set_headers``: the last two present ones and a new one."""
    return [*headers[-2:], ("n", str(value["n"]))]


def with_headers(sdf: Any) -> Any:
    """Adds a step that changes the headers, which outputs and some functions show."""
    return sdf.set_headers(relabelled)


def placed(value: Value) -> Value:
    """Adds the offset of the message to the value."""
    return {**value, "p": message_context().offset}


class Kept(BatchingSink):
    """A sink that checks offset and timestamp of each item. It does not count items, because a crash repeats some."""

    def write(self, batch: SinkBatch) -> None:
        """Checks a batch."""
        for item in batch:
            if not isinstance(item.offset, int) or item.offset < -1 or item.timestamp < 0:
                raise AssertionError(f"a sink got {item!r} of {batch.topic}[{batch.partition}]")


def sunk(sdf: Any) -> Any:
    """Adds a sink to a stream, and returns the stream."""
    sdf.sink(Kept())
    return sdf


def chosen(app: Any, out: str) -> Any:
    """A function that chooses the output topic of each value: mostly ``out``, the only topic that is compared."""
    most_of_them, others = app.topic(out), app.topic(f"{out}-others")

    def choose(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        return others if isinstance(value, dict) and value.get("n") == 3 else most_of_them

    return choose


def same_time(value: Any, key: Any, timestamp: int, headers: Any) -> int:
    """Returns the timestamp of an output: that of its message."""
    return timestamp


def headed(value: Value) -> dict[str, str]:
    """Returns headers for ``to_topic``."""
    return {"n": str(value["n"])}


# -- columns of a stream -----------------------------------------------------------------------------------------------


def projected(sdf: Any) -> Any:
    """Keeps only the fields that all functions keep."""
    return sdf[["n", "v", "h", "g", "d"]]


def computed(sdf: Any) -> Any:
    """Adds computed columns. Some are changed in place, and some contain a part of another column."""
    sdf = sdf[sdf.contains("n")]
    sdf["w"] = (sdf["n"] * 3 - 1) // 2 % 7
    sdf["deep"] = sdf.apply(parted)
    sdf["part"] = sdf["deep"]["list"]
    sdf["deep"] = sdf["deep"].apply(lengthened)
    sdf.fill("none", filled={"list": []})
    sdf["filled"] = sdf["filled"].apply(lengthened)
    return sdf


def kept(sdf: Any) -> Any:
    """Keeps most messages, by a condition on columns."""
    return sdf[(sdf["n"] % 7 != 3) | (sdf["h"].isin(["k1", "k2"]) & ~(sdf["g"] == sdf["h"]))]


def renamed(sdf: Any) -> Any:
    """Drops and renames some columns."""
    sdf = sdf[sdf.apply(present)]
    sdf.drop(["old", "w"], errors="ignore")
    return sdf.rename({"a": "old", "none": "nothing"}, errors="ignore").drop("nothing", errors="ignore")


def parted(value: Value) -> Value:
    """Returns a dict to nest inside the value."""
    return {"list": [value["n"]]}


def lengthened(part: Value) -> Value:
    """Changes the nested dict in place and returns it."""
    part["list"].append(len(part["list"]))
    return part


def marked_by_columns(sdf: Any) -> Any:
    """Does by columns what ``apply(marked)`` does."""
    sdf = sdf[sdf.contains("n")].fill(a=0)
    sdf["a"] = sdf["a"] + 1
    return sdf


def changed_by_columns(sdf: Any) -> Any:
    """Does by columns what ``apply(changed)`` does."""
    sdf = sdf[~sdf["n"].isnull()].fill(m=0)
    sdf["m"] += 1
    return sdf


def touched_by_columns(sdf: Any) -> Any:
    """Does by columns what ``update(touched)`` does, also in place."""
    sdf.fill(u=0)
    sdf["u"] = 1 + sdf["u"]
    return sdf


# -- functions with state ----------------------------------------------------------------------------------------------


def counted(value: Value, state: State) -> Value:
    """Numbers the messages of a key."""
    return {**value, "c": state.increment("count")}


def summed(value: Value, state: State) -> Value:
    """Adds to a total in state that the value does not show."""
    state.increment("total", value["n"])
    return value


def listed(value: Value, state: State) -> Value:
    """Keeps a list, several values and bytes in state."""
    last = state.append("last", value["n"], keep_last=3)
    state.set(f"of/{value['n'] % 4}", value["d"])
    state.set_bytes("raw", str(value["n"]).encode())
    return {**value, "l": last, "keys": list(state.keys(prefix="of/")), "of": dict(state.items(prefix="of/", limit=2))}


def forgetful(value: Value, state: State) -> Value:
    """Deletes from state what an earlier message of the key has set."""
    known = state.pop("n", None) if value["n"] % 3 == 0 else state.get("n")
    if value["n"] % 3 == 1:
        state.set("n", value["n"])
    elif state.exists("n") and value["n"] % 7 == 0:
        state.delete("n")
    return {**value, "before": known, "raw": (state.get_bytes("none") or b"").hex()}


def remembered(value: Value, state: State) -> None:
    """Stores the number of a key's newest message, for ``update``."""
    state.set("newest", value["n"])


def recalled(value: Value, state: State) -> Value:
    """Adds the number that ``remembered`` has stored to the value."""
    return {**value, "newest": state.get("newest")}


def unseen(value: Value, state: State) -> bool:
    """Keeps the first message of each ``d``, for ``filter``."""
    name = f"seen/{value['d']}"
    if state.exists(name):
        return False
    state.set(name, 1)
    return True


# -- functions of two values -------------------------------------------------------------------------------------------


def merged(left: Any, right: Any) -> Value:
    """Returns the left value with the right value's fields added."""
    return {**(left or _NONE), "r": [right["n"], right["v"], right.get("m", 0)] if right else None}


def merged_in_place(left: Any, right: Any) -> Value:
    """Merges like ``merged``, but changes both values in place."""
    made = left if left is not None else dict(_NONE)
    if right is not None:
        right["m"] = right.get("m", 0) + 1
        made["r"] = [right["n"], right["v"], right["m"]]
    made["i"] = made.get("i", 0) + 1
    return made


def left_only(left: Any, right: Any) -> Value:
    """Returns the left value; ignores the right one."""
    return {**(left or _NONE)}


_NONE = {"n": 0, "v": 0, "h": "k0", "g": "k0", "d": 0}


# -- other systems -----------------------------------------------------------------------------------------------------


async def asked(value: Value) -> Value:
    """Stands for a call of another system, for ``apply_async``."""
    if value["n"] % 3 == 0:
        await asyncio.sleep(0)
    return {**value, "asked": value["n"] * 2}


async def looked_up(key: Any) -> Value:
    """Stands for a lookup in another system, for ``join_lookup``; some keys have no row."""
    if key in ("k1", b"k1"):
        raise NotFound
    return {"row": key if isinstance(key, str) else bytes(key).hex()}


# -- timers ------------------------------------------------------------------------------------------------------------


class Alarm:
    """A processor that emits a value when a key was silent for a while of stream time."""

    def on_message(self, value: Value, context: Any) -> None:
        """Resets the timer, or cancels it for some messages."""
        if value["n"] % 6 == 5:
            context.cancel_timer("silent")
        else:
            context.set_timer("silent", at=timedelta(milliseconds=400))
        context.state.increment("seen")
        context.emit({**value, "set": [each.name for each in context.timers()]})

    def on_timer(self, name: str, time: int, context: Any) -> None:
        """Emits that the key was silent."""
        seen = context.state.get("seen", 0)
        context.emit({**_NONE, "n": seen, "alarm": name, "time": time, "seen": seen})


class Reminder:
    """A processor that stores when a key was silent for a while of the worker's clock.

    A timer emits nothing, because how often it fires depends on the schedule.
    """

    def on_message(self, value: Value, context: Any) -> None:
        """Resets the first timer, and cancels the second one."""
        context.set_timer("due", at=timedelta(milliseconds=300), clock="processing")
        context.cancel_timer("again")
        context.emit({**value, "seen": context.state.increment("seen")})

    def on_timer(self, name: str, time: int, context: Any) -> None:
        """Stores that the timer has fired, and sets the second timer after the first one."""
        context.state.set(f"fired/{name}", context.state.get("seen"))
        if name == "due":
            context.set_timer("again", at=timedelta(milliseconds=200), clock="processing")


# -- columns of windows ------------------------------------------------------------------------------------------------


def begun(value: Value) -> list[int]:
    """Returns the first state of ``reduce``."""
    return [value["n"]]


def folded(held: list[int], value: Value) -> list[int]:
    """Returns the next state of ``reduce``."""
    return [*held[-3:], value["n"]]


def connected(earlier: list[int], later: list[int]) -> list[int]:
    """Returns the merged state of two sessions."""
    return [*earlier, *later][-4:]


def enough(aggregated: Any, value: Value, key: Any, timestamp: int, headers: Any) -> bool:
    """Whether a window sends an early result at this message."""
    return bool(value["n"] % 4 == 0)


# -- schedules ---------------------------------------------------------------------------------------------------------


def scheduled(app: Any) -> None:
    """Gives each task a schedule that reads all stores it can reach, counts its calls, and sends a record."""
    sends = app.topic("slots")

    def look(slot: Any) -> None:
        found = {name: sum(1 for _ in slot.items(name)) for name in slot._reach.stores}
        slot.send({"slot": slot.time, "count": slot.state.increment("slots"), "found": found}, key=b"slots")

    for number, frame in enumerate(list(app.frames.values())):
        app.every(5_000 + 1_000 * number, name=f"slots-{number}", per="task", missed="all", to=sends, stream=frame)(
            look
        )
