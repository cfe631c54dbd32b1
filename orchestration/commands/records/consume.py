"""``holdfast consume``: prints committed records of a topic."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import Json, command_settings, print_json

if TYPE_CHECKING:
    from holdfast.infra.kafka.topics.browsing import Found
    from holdfast.infra.kafka.topics.topics import Topics
    from holdfast.infra.settings import Settings

#: Maximum number of characters that are printed of a key, value or header; ``--json`` prints them completely.
SHOWN_MAX = 500


class StartInvalid(HoldfastError):
    """The value of ``--from`` is neither an offset nor a time. Field: seen."""

    exit_code = EXIT_BAD_CONFIGURATION


def consume(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=100_000, help="Number of records.")] = 10,
    headers: Annotated[bool, typer.Option("--headers", help="Print the headers of each record, too.")] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Print the first records from here on: `earliest`, an offset, or a time (ISO 8601 in UTC). Default: "
            "the newest records.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print committed records of a topic, the newest ones or the first from a place or a time on.

    By default, the newest records are printed. With `--from`, the first records at or after an offset or a time.
    """
    from holdfast.infra.kafka.topics.browsing import first_of, newest_of

    topics = open_topics(command_settings(), topic)
    found = first_of(topics, topic, count, _starts(topics, topic, start)) if start else newest_of(topics, topic, count)
    if as_json:
        print_json({"topic": topic, "records": [as_document(each) for each in found]})
        return
    for each in found:
        typer.echo(in_words(each, headers=headers))
    if not found:
        typer.echo(f"Topic {topic} has no record there.", err=True)


def open_topics(settings: Settings, topic: str) -> Topics:
    """A client for the cluster's topics; raises an error if ``topic`` does not exist.

    Raises:
        TopicUnusable: The topic does not exist.
    """
    from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
    from holdfast.infra.kafka.errors import TopicUnusable
    from holdfast.infra.kafka.topics.topics import Topics

    topics = Topics(bootstrap_servers(settings), client_config(settings), timeout_s=10.0)
    if topic not in topics.describe([topic]):
        raise TopicUnusable(
            f"Topic {topic} does not exist.",
            action="Correct its name. `holdfast explain topology PROCESSOR` names the topics of a processor.",
            topic=topic,
        )
    return topics


def _starts(topics: Topics, topic: str, start: str) -> dict[int, int]:
    """Partition -> start offset, according to ``--from``.

    If the record at this offset was deleted, the start is the first existing offset.
    """
    first = topics.start_offsets(topic)
    if start == "earliest":
        return first
    if start.isdecimal():
        return {number: max(offset, int(start)) for number, offset in first.items()}
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as failure:
        raise StartInvalid(
            f"`--from {start}` is no place in a topic; expected `earliest`, an offset as 4711, or a time as "
            "2026-03-01T12:00.",
            action="Correct it, or leave it out for the newest records.",
            seen=start,
        ) from failure
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return topics.offsets_at(topic, int(moment.timestamp() * 1000))


def as_document(found: Found) -> dict[str, Any]:
    """A record as a JSON document. Key, value and headers are text if they are UTF-8, otherwise hexadecimal digits."""
    place, record = found
    return {
        "partition": place.number,
        "offset": record.offset,
        "time": f"{datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec='milliseconds')}",
        "key": as_text(record.key),
        "value": as_text(record.value),
        "headers": [[name, as_text(value)] for name, value in record.headers or ()],
    }


def in_words(found: Found, *, headers: bool = False) -> str:
    """A record as one line of text; ``headers`` adds a line for each header. Control characters are escaped."""
    document = as_document(found)
    key, value = (shown(document[name]) for name in ("key", "value"))
    line = f"{document['time']} [{document['partition']}] {document['offset']:>8}  {key}  {value}"
    more = [f"    {shown(name)}: {shown(text)}" for name, text in document["headers"]] if headers else []
    return "\n".join((line, *more))


def as_text(part: bytes | None) -> str | None:
    """Bytes as text if they are UTF-8; otherwise hexadecimal digits, for example ``0xff00``."""
    if part is None:
        return None
    try:
        return part.decode()
    except UnicodeDecodeError:
        return f"0x{part.hex()}"


def shown(text: str | None) -> str:
    """A text for one line of a terminal: escaped, and cut after ``SHOWN_MAX`` characters. None becomes ``-``."""
    if text is None:
        return "-"
    cut = text[:SHOWN_MAX]
    safe = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    return safe if len(text) <= SHOWN_MAX else f"{safe}… ({len(text):,} characters)"
