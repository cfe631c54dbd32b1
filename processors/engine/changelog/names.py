"""Makes the names of changelogs, repartition topics and shadows' consumer groups, and makes transactional ids.

A shadow is a second run of a processor's functions, which builds one of its stores again.
"""

from __future__ import annotations

import hashlib
import re

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.kafka.records import LOADS_SUFFIX, WORKERS_PREFIX

#: Kafka's maximum length of a topic name, in characters.
TOPIC_NAME_MAX = 249
#: Maximum characters in the name of a shadow's group. The supervisor's program name is this name with the slot added,
#: and must have less than 128 characters.
SHADOW_NAME_MAX = 110
#: The suffix of every changelog's name.
CHANGELOG_SUFFIX = "-changelog"
#: The suffix of every repartition topic's name.
REPARTITION_SUFFIX = "-repartition"
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class IllegalName(BadConfiguration):
    """A name is not allowed in Kafka."""


def check_name(name: str, what: str) -> str:
    """Returns ``name``; raises IllegalName if Kafka does not allow it in a topic name. ``what`` describes the name."""
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
    """Returns the name of the changelog topic of one store of one processor."""
    return check_name(f"{processor}-{store}{CHANGELOG_SUFFIX}", "changelog name")


def repartition_topic(processor: str, name: str) -> str:
    """Returns the name of the repartition topic of one ``group_by`` of one processor."""
    return check_name(f"{processor}-{name}{REPARTITION_SUFFIX}", "name of a repartition topic")


def other_processors_of(topic: str, processor: str) -> tuple[str, ...]:
    """Returns the names of other processors that could have a repartition topic with the name ``topic``.

    For example, ``a-b-c-repartition`` is the topic of processor ``a`` with ``group_by`` ``b-c``, and also of processor
    ``a-b`` with ``group_by`` ``c``.
    """
    parts = topic.removesuffix(REPARTITION_SUFFIX).split("-")
    found = ("-".join(parts[:end]) for end in range(1, len(parts)))
    return tuple(name for name in found if name and name != processor)


def is_repartition_topic(topic: str) -> bool:
    """Whether a topic name has the suffix of repartition topics."""
    return topic.endswith(REPARTITION_SUFFIX)


def shadow_group(processor: str, store: str) -> str:
    """Returns the consumer group of the shadow (a second run of the processor's functions) that rebuilds one store.

    A name that is too long is shortened, and a hash is added to it.
    """
    name = f"{processor}--rebuild-{store}"
    if len(name) <= SHADOW_NAME_MAX:
        return name
    return f"{name[: SHADOW_NAME_MAX - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def filling_topic(processor: str, store: str) -> str:
    """Returns the name of a temporary topic, into which rows of an Iceberg table are loaded in changelog format.

    Afterwards, the store adopts the topic: its content becomes equal to the content of the topic.
    """
    return check_name(f"{processor}--fill-{store}{CHANGELOG_SUFFIX}", "name of the topic that a table is loaded to")


def loading_id(processor: str) -> str:
    """Returns the transactional id of the loader, which writes a processor's changelogs while no worker runs."""
    return f"{WORKERS_PREFIX}{processor}{LOADS_SUFFIX}"


def file_name(name: str, longest: int = 255) -> str:
    """Returns a safe name for a file or a folder. Unsafe characters become ``_``. A long name is cut and gets a hash.

    A task's name contains the names of its topics, so it can exceed the 255 bytes that file systems allow.
    """
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name)
    if len(safe) <= longest:
        return safe
    head, _, partition = safe.rpartition("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{head[: longest - 30]}~{digest}-{partition[-12:]}"


def transactional_id(processor: str, folder_id: str, slot: str) -> str:
    """Returns the transactional id of one worker slot.

    A restarted worker has the same id, so it fences its old process.

    Args:
        processor: The processor's name.
        folder_id: The id of the slot's state folder. It makes the result unique, because host names may be equal.
        slot: The name of the slot.
    """
    return f"{WORKERS_PREFIX}{processor}-{folder_id}-{slot}"


def is_worker_of(processor: str, transactional_id: str) -> bool:
    """Whether a transactional id belongs to a worker of this processor, on any host."""
    return re.match(rf"{re.escape(WORKERS_PREFIX + processor)}-[0-9a-f]{{12}}-", transactional_id) is not None
