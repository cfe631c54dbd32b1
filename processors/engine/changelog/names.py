"""The names of changelogs and of the engine's transactional ids; built here and nowhere else."""

from __future__ import annotations

import hashlib
import re

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

#: Kafka's own bound on a topic name.
TOPIC_NAME_MAX = 249
#: A program's name has 128 characters at most, its slot included.
SHADOW_NAME_MAX = 110
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class IllegalName(HoldfastError):
    """A name can't be used in Kafka."""

    exit_code = EXIT_BAD_CONFIGURATION


def check_name(name: str, what: str) -> str:
    """Return ``name`` if Kafka can use it in a topic name.

    Raises:
        IllegalName: It is empty, too long, or has characters that Kafka refuses.
    """
    if not _LEGAL.fullmatch(name) or len(name) > TOPIC_NAME_MAX or name in (".", ".."):
        raise IllegalName(
            f"The {what} {name!r} can't be used in Kafka.",
            action=f"Use 1 to {TOPIC_NAME_MAX} letters, digits, dots, underscores and dashes.",
            name=name,
        )
    return name


def changelog_topic(processor: str, store: str) -> str:
    """The changelog topic of one store of one processor."""
    return check_name(f"{processor}-{store}-changelog", "changelog name")


def shadow_group(processor: str, store: str) -> str:
    """The group of what builds one store of a processor anew, beside it; short enough to be a program's name."""
    name = f"{processor}--rebuild-{store}"
    if len(name) <= SHADOW_NAME_MAX:
        return name
    return f"{name[: SHADOW_NAME_MAX - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def filling_topic(processor: str, store: str) -> str:
    """The topic, shaped like a store's changelog, that a table is loaded to before the store takes it over."""
    return check_name(f"{processor}--fill-{store}-changelog", "name of the topic that a table is loaded to")


def loading_id(processor: str) -> str:
    """The transactional id of who writes a processor's changelogs while no worker does."""
    return f"holdfast-{processor}-load"


def transactional_id(processor: str, host: str, slot: str) -> str:
    """Stable for one worker slot, so that a restart at once ends what its former life left open."""
    return f"holdfast-{processor}-{host}-{slot}"
