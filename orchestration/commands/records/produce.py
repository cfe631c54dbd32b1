"""``holdfast produce``: sends lines of JSON to a topic. If one line is invalid, no line is sent.

If Kafka fails while lines are sent, some lines may be in the topic, and others not.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE
from holdfast.infra.kafka.topics.json_lines import JsonRecord, Shape, judge, records
from holdfast.orchestration.commands.options import Json, command_settings, print_answer

if TYPE_CHECKING:
    from holdfast.infra.kafka.clients.feeder import Feeder
    from holdfast.infra.settings import Settings

#: Number of records after which acknowledgements are read and the progress is printed.
LOOK_EVERY = 500


class FileUnreadable(HoldfastError):
    """The file with the lines to send can't be read. Field: path."""

    exit_code = EXIT_BAD_CONFIGURATION


class PartlySent(HoldfastError):
    """Kafka failed after a part of the records was sent. Fields: acknowledged, total."""

    exit_code = EXIT_BROKER_UNAVAILABLE


def produce(
    topic: Annotated[str, typer.Argument(help="The topic, which must exist.", show_default=False)],
    file: Annotated[str, typer.Option("--file", "-f", help="File with one JSON value in each line; `-` for stdin.")],
    key: Annotated[
        str, typer.Option(help="Field with the message key, as `id` or `plane.id`, or a template, as `{from}-{to}`.")
    ] = "",
    time_field: Annotated[
        str, typer.Option("--time", help="Field with the time of a record: ms since 1970 or ISO 8601. Default: now.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Send lines of JSON to a topic; a bad line sends nothing.

    All lines are checked first. If one line is invalid, no line is sent.
    """
    settings = command_settings()
    shape = Shape(key, time_field, _bytes_max(settings, topic))
    console = Console(stderr=True)
    with _opened(file) as lines, console.status("reading …") as spinner:
        total = judge(lines, shape)
        lines.seek(0)
        began = time.monotonic()
        for done in _send(settings, topic, records(lines, shape), total):
            spinner.update(f"{done:,} of {total:,} records acknowledged by {topic}")
        seconds = time.monotonic() - began
    rate = f", {total / seconds:,.0f} per second" if seconds > 0 else ""
    document = {"topic": topic, "records": total, "seconds": round(seconds, 3)}
    print_answer(document, f"{total:,} records are in {topic} ({seconds:.1f} s{rate}).", as_json=as_json)


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """Context manager with the open file of lines.

    The lines are read twice, so stdin (``-``) is first copied to a private temporary file.
    """
    if file == "-":
        with tempfile.TemporaryFile() as copied:
            shutil.copyfileobj(sys.stdin.buffer, copied)
            copied.seek(0)
            yield copied
        return
    try:
        opened = os.fdopen(os.open(file, os.O_RDONLY), "rb")
    except OSError as failure:
        raise FileUnreadable(
            f"{file} can't be read: {failure.strerror}.", action="Name a file after `-f`, or `-` for stdin.", path=file
        ) from failure
    with opened:
        yield opened


def _bytes_max(settings: Settings, topic: str) -> int:
    """Maximum size of a record that the topic and the client accept, bytes.

    Raises:
        TopicUnusable: The topic does not exist.
    """
    from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
    from holdfast.infra.kafka.errors import TopicUnusable
    from holdfast.infra.kafka.topics.topics import Topics

    topics = Topics(bootstrap_servers(settings), client_config(settings), timeout_s=10.0)
    found = topics.describe([topic])
    if topic not in found:
        raise TopicUnusable(
            f"Topic {topic} does not exist.",
            action="Correct its name, or create the topics of its processor: `holdfast apply provision PROCESSOR`.",
            topic=topic,
        )
    client = int(str(settings.kafka.client_config.get("message.max.bytes", 1_000_000)))
    # 512 bytes are subtracted, because the broker counts the header of the record batch as part of the size
    return min(client, int(found[topic].config.get("max.message.bytes", 1_048_588))) - 512


def _send(settings: Settings, topic: str, found: Iterator[JsonRecord], total: int) -> Iterator[int]:
    """Send the records; yields the number of acknowledged records after every ``LOOK_EVERY`` records and at the end.

    Raises:
        PartlySent: Kafka refused a record or did not answer.
    """
    from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
    from holdfast.infra.kafka.clients.feeder import Feeder
    from holdfast.infra.kafka.errors import KafkaFailed

    now_ms, feeder = int(time.time() * 1000), None
    try:
        with Feeder(bootstrap_servers(settings), client_config(settings), then="") as feeder:
            for number, each in enumerate(found, 1):
                stamp = now_ms if each.timestamp_ms is None else each.timestamp_ms
                feeder.send(topic, each.key, each.value, stamp)
                if number % LOOK_EVERY == 0:
                    feeder.poll()
                    yield feeder.acknowledged
        yield feeder.acknowledged
    except KafkaFailed as failure:
        raise _partly(failure, feeder, topic, total) from failure


def _partly(failure: HoldfastError, feeder: Feeder | None, topic: str, total: int) -> PartlySent:
    sent = 0 if feeder is None else feeder.acknowledged
    return PartlySent(
        f"{topic} has acknowledged {sent:,} of {total:,} records; others may be in it, too. {failure.message}",
        action=f"{failure.action.strip()} Sending the file again sends the acknowledged records a second time.",
        acknowledged=sent,
        total=total,
    )
