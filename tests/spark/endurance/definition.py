"""The processor of the endurance run. It counts the messages of each key; a message can reset its key."""

from __future__ import annotations

STORE = "counts"
PARTITIONS = 2
#: Source of the module that a worker imports. A message with `gone` deletes the state of its key.
DEFINITION = """
from pydantic import BaseModel
from holdfast import Application


class Count(BaseModel):
    n: int
    total: int
    last: int


application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 6000}},
)


def count(value, state):
    if value["gone"]:
        state.delete("c")
        return 0
    was = state.get("c", {{"n": 0, "total": 0, "last": -1}})
    now = {{"n": was["n"] + 1, "total": was["total"] + value["amount"], "last": value["id"]}}
    state.set("c", now)
    return now["n"]


frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(count, stateful=True, store="counts", model=Count)
frame.to_topic(application.topic("{group}-out"))
"""
