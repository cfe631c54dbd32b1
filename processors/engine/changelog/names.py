"""The names of changelogs, repartition topics, groups of shadows and transactional ids; no other module builds them."""

from __future__ import annotations

import hashlib
import re

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.kafka.records import LOADS_SUFFIX, WORKERS_PREFIX

#: Kafka's limit of a topic name, in characters.
TOPIC_NAME_MAX = 249
#: A program of the supervisor has a name of at most 128 characters, slot included.
SHADOW_NAME_MAX = 110
#: The end of every changelog's name.
CHANGELOG_SUFFIX = "-changelog"
#: The end of every repartition topic's name.
REPARTITION_SUFFIX = "-repartition"
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class IllegalName(BadConfiguration):
    """Kafka refuses a name."""


def check_name(name: str, what: str) -> str:
    """The name itself; raises IllegalName, with ``what`` as its description, if Kafka refuses it as a topic name."""
    if not isinstance(name, str):
        raise IllegalName(
            f"The {what} is {name!r} of type {type(name).__name__}; expected a text.",
            action=f"Write the {what} as a text, in quotes.",
            name=repr(name)[:80],
        )
    if not _LEGAL.fullmatch(name) or len(name) > TOPIC_NAME_MAX or name in (".", ".."):
        raise IllegalName(
            f"The {what} {name!r} can't be used in Kafka.",
            action=f"Change it to 1 to {TOPIC_NAME_MAX} letters, digits, dots, underscores and dashes.",
            name=name,
        )
    return name


def changelog_topic(processor: str, store: str) -> str:
    """The changelog topic of one store of one processor."""
    return check_name(f"{processor}-{store}{CHANGELOG_SUFFIX}", "changelog name")


def repartition_topic(processor: str, name: str) -> str:
    """The topic between the two sides of one ``group_by`` of one processor."""
    return check_name(f"{processor}-{name}{REPARTITION_SUFFIX}", "name of a repartition topic")


def other_processors_of(topic: str, processor: str) -> tuple[str, ...]:
    """The other processors whose ``group_by`` could have a repartition topic of this name.

    ``a-b-c-repartition`` is the topic of ``a`` with the name ``b-c``, and of ``a-b`` with the name ``c``.
    """
    parts = topic.removesuffix(REPARTITION_SUFFIX).split("-")
    found = ("-".join(parts[:end]) for end in range(1, len(parts)))
    return tuple(name for name in found if name and name != processor)


def is_repartition_topic(topic: str) -> bool:
    """Whether a topic has the name of a repartition topic."""
    return topic.endswith(REPARTITION_SUFFIX)


def shadow_group(processor: str, store: str) -> str:
    """The consumer group of the shadow that rebuilds one store; short enough for a program's name."""
    name = f"{processor}--rebuild-{store}"
    if len(name) <= SHADOW_NAME_MAX:
        return name
    return f"{name[: SHADOW_NAME_MAX - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def filling_topic(processor: str, store: str) -> str:
    """The topic to which a table is loaded before its store adopts it; it has the format of a changelog."""
    return check_name(f"{processor}--fill-{store}{CHANGELOG_SUFFIX}", "name of the topic that a table is loaded to")


def loading_id(processor: str) -> str:
    """The transactional id for writing a processor's changelogs while no worker runs."""
    return f"{WORKERS_PREFIX}{processor}{LOADS_SUFFIX}"


def file_name(name: str, longest: int = 255) -> str:
    """A name for a file or a folder: safe characters, and a long name cut, with a hash of the whole.

    The name of a task joins the names of its topics, so it can exceed the 255 bytes that file systems allow.
    """
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name)
    if len(safe) <= longest:
        return safe
    head, _, partition = safe.rpartition("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{head[: longest - 30]}~{digest}-{partition[-12:]}"


def transactional_id(processor: str, folder_id: str, slot: str) -> str:
    """The transactional id of one worker slot. It is stable, so a restarted worker ends its earlier open transaction.

    Args:
        processor: The processor's name.
        folder_id: The id of the slot's state folder. Hosts may have equal names; folders never have equal ids.
        slot: The slot.
    """
    return f"{WORKERS_PREFIX}{processor}-{folder_id}-{slot}"


def is_worker_of(processor: str, transactional_id: str) -> bool:
    """Whether a transactional id belongs to a worker of this processor, on any host."""
    return re.match(rf"{re.escape(WORKERS_PREFIX + processor)}-[0-9a-f]{{12}}-", transactional_id) is not None
