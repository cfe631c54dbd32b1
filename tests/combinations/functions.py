"""The functions of generated topologies: plain Python, the same result for the same argument in every schedule.

A message's value is an object with the fields ``n`` (its number), ``v`` (a number), ``h`` and ``g`` (other keys) and
``d`` (equal for duplicates). Functions keep these fields, so that each step fits behind each other step.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from holdfast import NotFound, State, message_context
from holdfast.sinks import BatchingSink, SinkBatch
from tests.combinations.added_sources import charged as charged  # a line of a topology calls it
from tests.combinations.added_sources import sourced as sourced
from tests.combinations.lake import staged as staged  # a line of a topology calls it

Value = dict[str, Any]


class Record(msgspec.Struct):
    """A message's value as an instance: steps read its fields as those of an object."""

    n: Any
    v: Any
    h: Any
    g: Any
    d: Any


class Spoilt(Exception):
    """Raised for messages that can't be processed."""


# -- functions of a value ----------------------------------------------------------------------------------------------


def marked(value: Value) -> Value:
    """A new value with one more field."""
    return {**value, "a": value.get("a", 0) + 1}


def changed(value: Value) -> Value:
    """The same object, changed in place."""
    value["m"] = value.get("m", 0) + 1
    return value


def touched(value: Value) -> None:
    """Changes the value in place, for ``update``."""
    value["u"] = value.get("u", 0) + 1


def most(value: Value) -> bool:
    """Most messages."""
    return bool(value["n"] % 5)


def halves(value: Value) -> list[Value]:
    """Two values of one."""
    return [{**value, "half": half} for half in (0, 1)]


def spoilt(value: Value) -> Value:
    """Raises for some messages."""
    if value["n"] % 11 == 7:
        raise Spoilt(value["n"])
    return value


def with_key(value: Value, key: Any, timestamp: int, headers: Any) -> Value:
    """A value with what the message has besides."""
    shown = key.hex() if isinstance(key, bytes) else key
    return {**value, "k": shown, "t": timestamp, "x": [[name, (raw or b"").hex()] for name, raw in headers or ()]}


def present(value: Value | None) -> bool:
    """Whether there is a value: the changes of a table have None for a deletion."""
    return value is not None


def shaped(value: Any) -> Value:
    """A value with the usual fields, of the result of a window or an aggregation."""
    number = value.get("start", 0) // 10 if isinstance(value, dict) else 0
    return {"n": number, "v": number % 17, "h": f"k{number % 3}", "g": f"k{number % 2}", "d": number % 4, "w": value}


def later(value: Value, key: Any, timestamp: int, headers: Any) -> int:
    """Another event time, from the message alone."""
    return timestamp + value["n"] % 3


def unmoved(value: Value, key: Any, timestamp: int, headers: Any) -> int:
    """The event time that the message has."""
    return timestamp


def of_value(value: Any, headers: Any, timestamp: int, kind: int) -> int:
    """The event time of a message: that of its record, so that no two topics get equal times by it."""
    return int(timestamp)


def length(value: Value) -> int:
    """A number of a value."""
    return len(str(value["n"]))


def other_key(value: Value) -> bytes:
    """A key for ``to_topic``."""
    return f"k{value['n'] % 3}".encode()


def third(value: Value) -> str:
    """A key for ``group_by`` that no field has."""
    return f"k{value['n'] % 3}"


def with_row(total: int, row: Value) -> int:
    """A total with one more row of a group."""
    return total + int(row["n"])


def of_row(row: Value) -> int:
    """The total of a group's first row."""
    return int(row["n"])


def without_row(total: int, row: Value) -> int:
    """A total with one row less."""
    return total - int(row["n"])


def as_row(group: Value) -> Value:
    """A row with the usual fields, of the aggregates of a group."""
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
    """Headers for ``set_headers``: those that are there, and one more."""
    return [*headers[-2:], ("n", str(value["n"]))]


def with_headers(sdf: Any) -> Any:
    """Other headers for outputs, and for functions that show them."""
    return sdf.set_headers(relabelled)


def placed(value: Value) -> Value:
    """A value with the offset of its message."""
    return {**value, "p": message_context().offset}


class Kept(BatchingSink):
    """A sink that checks what it gets. A crash repeats results, so that their number is not the same in each run."""

    def write(self, batch: SinkBatch) -> None:
        """Checks a batch."""
        for item in batch:
            if not isinstance(item.offset, int) or item.offset < -1 or item.timestamp < 0:
                raise AssertionError(f"a sink got {item!r} of {batch.topic}[{batch.partition}]")


def sunk(sdf: Any) -> Any:
    """The same stream, whose values go to a sink, too."""
    sdf.sink(Kept())
    return sdf


def chosen(app: Any, out: str) -> Any:
    """A function that returns the topic of each value: mostly ``out``, which is compared."""
    most_of_them, others = app.topic(out), app.topic(f"{out}-others")

    def choose(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        return others if isinstance(value, dict) and value.get("n") == 3 else most_of_them

    return choose


def same_time(value: Any, key: Any, timestamp: int, headers: Any) -> int:
    """The timestamp of an output."""
    return timestamp


def headed(value: Value) -> dict[str, str]:
    """Headers for ``to_topic``."""
    return {"n": str(value["n"])}


# -- columns of a stream -----------------------------------------------------------------------------------------------


def projected(sdf: Any) -> Any:
    """Only the fields that functions keep."""
    return sdf[["n", "v", "h", "g", "d"]]


def computed(sdf: Any) -> Any:
    """More columns, some of which are changed in place, or have a part of another one."""
    sdf = sdf[sdf.contains("n")]
    sdf["w"] = (sdf["n"] * 3 - 1) // 2 % 7
    sdf["deep"] = sdf.apply(parted)
    sdf["part"] = sdf["deep"]["list"]
    sdf["deep"] = sdf["deep"].apply(lengthened)
    sdf.fill("none", filled={"list": []})
    sdf["filled"] = sdf["filled"].apply(lengthened)
    return sdf


def kept(sdf: Any) -> Any:
    """Most messages, by a condition."""
    return sdf[(sdf["n"] % 7 != 3) | (sdf["h"].isin(["k1", "k2"]) & ~(sdf["g"] == sdf["h"]))]


def renamed(sdf: Any) -> Any:
    """Columns that are taken out, and that get other names."""
    sdf = sdf[sdf.apply(present)]
    sdf.drop(["old", "w"], errors="ignore")
    return sdf.rename({"a": "old", "none": "nothing"}, errors="ignore").drop("nothing", errors="ignore")


def parted(value: Value) -> Value:
    """An object inside of the value."""
    return {"list": [value["n"]]}


def lengthened(part: Value) -> Value:
    """The same object, changed in place."""
    part["list"].append(len(part["list"]))
    return part


def marked_by_columns(sdf: Any) -> Any:
    """What ``apply(marked)`` does."""
    sdf = sdf[sdf.contains("n")].fill(a=0)
    sdf["a"] = sdf["a"] + 1
    return sdf


def changed_by_columns(sdf: Any) -> Any:
    """What ``apply(changed)`` does."""
    sdf = sdf[~sdf["n"].isnull()].fill(m=0)
    sdf["m"] += 1
    return sdf


def touched_by_columns(sdf: Any) -> Any:
    """What ``update(touched)`` does, also in place."""
    sdf.fill(u=0)
    sdf["u"] = 1 + sdf["u"]
    return sdf


# -- functions with state ----------------------------------------------------------------------------------------------


def counted(value: Value, state: State) -> Value:
    """Numbers the messages of a key."""
    return {**value, "c": state.increment("count")}


def summed(value: Value, state: State) -> Value:
    """Adds to a total that does not show."""
    state.increment("total", value["n"])
    return value


def listed(value: Value, state: State) -> Value:
    """Keeps a list, several values, and bytes."""
    last = state.append("last", value["n"], keep_last=3)
    state.set(f"of/{value['n'] % 4}", value["d"])
    state.set_bytes("raw", str(value["n"]).encode())
    return {**value, "l": last, "keys": list(state.keys(prefix="of/")), "of": dict(state.items(prefix="of/", limit=2))}


def forgetful(value: Value, state: State) -> Value:
    """Deletes what it set some messages before."""
    known = state.pop("n", None) if value["n"] % 3 == 0 else state.get("n")
    if value["n"] % 3 == 1:
        state.set("n", value["n"])
    elif state.exists("n") and value["n"] % 7 == 0:
        state.delete("n")
    return {**value, "before": known, "raw": (state.get_bytes("none") or b"").hex()}


def remembered(value: Value, state: State) -> None:
    """Keeps the newest number of a key, for ``update``."""
    state.set("newest", value["n"])


def recalled(value: Value, state: State) -> Value:
    """Reads what ``remembered`` keeps."""
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
    """Both values: the left one, with what the right one is."""
    left, right = _object(left), _object(right)
    return {**(left or _NONE), "r": [right["n"], right["v"], right.get("m", 0)] if right else None}


def merged_in_place(left: Any, right: Any) -> Value:
    """The same, but both are changed in place."""
    sides, left, right = (left, right), _object(left), _object(right)
    for side in sides:
        if isinstance(side, Record):
            side.d = "changed in place"
    made = left if left is not None else dict(_NONE)
    if right is not None:
        right["m"] = right.get("m", 0) + 1
        made["r"] = [right["n"], right["v"], right["m"]]
    made["i"] = made.get("i", 0) + 1
    return made


def left_only(left: Any, right: Any) -> Value:
    """The left value, whatever the right one is."""
    return {**(_object(left) or _NONE)}


def _object(side: Any) -> Any:
    """A new dict with the fields of an instance; any other value itself."""
    return msgspec.structs.asdict(side) if isinstance(side, Record) else side


_NONE = {"n": 0, "v": 0, "h": "k0", "g": "k0", "d": 0}


# -- other systems -----------------------------------------------------------------------------------------------------


async def asked(value: Value) -> Value:
    """Another system's answer."""
    if value["n"] % 3 == 0:
        await asyncio.sleep(0)
    return {**value, "asked": value["n"] * 2}


async def looked_up(key: Any) -> Value:
    """Another system's row; some keys have none."""
    if key in ("k1", b"k1"):
        raise NotFound
    return {"row": key if isinstance(key, str) else bytes(key).hex()}


# -- timers ------------------------------------------------------------------------------------------------------------


class Alarm:
    """Tells that a key was silent for a while of stream time."""

    def on_message(self, value: Value, context: Any) -> None:
        """Sets the timer again, or cancels it."""
        if value["n"] % 6 == 5:
            context.cancel_timer("silent")
        else:
            context.set_timer("silent", at=timedelta(milliseconds=400))
        context.state.increment("seen")
        context.emit({**value, "set": [each.name for each in context.timers()]})

    def on_timer(self, name: str, time: int, context: Any) -> None:
        """Tells it."""
        seen = context.state.get("seen", 0)
        context.emit({**_NONE, "n": seen, "alarm": name, "time": time, "seen": seen})


class Reminder:
    """Keeps that a key was silent for a while of the worker's clock: how often it was depends on the schedule."""

    def on_message(self, value: Value, context: Any) -> None:
        """Sets the timer again, or cancels the one that follows it."""
        context.set_timer("due", at=timedelta(milliseconds=300), clock="processing")
        context.cancel_timer("again")
        context.emit({**value, "seen": context.state.increment("seen")})

    def on_timer(self, name: str, time: int, context: Any) -> None:
        """Keeps it, and sets the one that follows."""
        context.state.set(f"fired/{name}", context.state.get("seen"))
        if name == "due":
            context.set_timer("again", at=timedelta(milliseconds=200), clock="processing")


# -- columns of windows ------------------------------------------------------------------------------------------------


def begun(value: Value) -> list[int]:
    """The first state of ``reduce``."""
    return [_object(value)["n"]]


def folded(held: list[int], value: Value) -> list[int]:
    """The next state of ``reduce``."""
    return [*held[-3:], _object(value)["n"]]


def connected(earlier: list[int], later: list[int]) -> list[int]:
    """One state of two sessions."""
    return [*earlier, *later][-4:]


def enough(aggregated: Any, value: Value, key: Any, timestamp: int, headers: Any) -> bool:
    """Whether a window is sent early."""
    return bool(value["n"] % 4 == 0)


# -- schedules ---------------------------------------------------------------------------------------------------------


def scheduled(app: Any) -> None:
    """Gives each task a schedule that reads all stores which it may, keeps a count, and sends."""
    sends = app.topic("slots")

    def look(slot: Any) -> None:
        found = {name: sum(1 for _ in slot.items(name)) for name in slot._reach.stores}
        slot.send({"slot": slot.time, "count": slot.state.increment("slots"), "found": found}, key=b"slots")

    for number, frame in enumerate(list(app.frames.values())):
        app.every(5_000 + 1_000 * number, name=f"slots-{number}", per="task", missed="all", to=sends, stream=frame)(
            look
        )
