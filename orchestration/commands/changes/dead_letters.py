"""``holdfast dead-letters``: lists the messages that failed (dead letters) with their reasons, or sends them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.changes.daily import carry_out_asked
from holdfast.orchestration.commands.options import Json, Processor, Who, command_settings, print_json
from holdfast.orchestration.commands.records.consume import as_document, open_topics, shown
from holdfast.processors.lifecycle.plans.facts.dead_letters import read_letter
from holdfast.processors.lifecycle.plans.requests import Replay

if TYPE_CHECKING:
    from holdfast.infra.kafka.topics.browsing import Found


class NoDeadLetters(HoldfastError):
    """The processor's definition sets no dead-letter topic. Field: processor."""

    exit_code = EXIT_BAD_CONFIGURATION


def dead_letters(  # tidy: allow-wide because each parameter is an option of the command
    context: typer.Context,
    processor: Processor,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=100_000, help="Number of letters to list.")] = 20,
    replay: Annotated[
        bool, typer.Option("--replay", help="Send the messages again to their topics, and delete these letters.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With `--replay`: apply the plan without a question.")
    ] = False,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """List a processor's dead letters with their reasons; `--replay` plans and applies sending them again."""
    if replay:
        carry_out_asked(Replay(processor), context=context, yes=yes, who=who, as_json=as_json)
        return
    from holdfast.infra.kafka.topics.browsing import newest_of
    from holdfast.processors.application.registration import find_processor

    settings = command_settings()
    spec = find_processor(settings, processor).topology.dead_letter
    if spec is None:
        raise NoDeadLetters(
            f"Application {processor} has no dead-letter topic: a message that fails stops it, or is skipped by "
            "`on_processing_error`.",
            action=f"Set `dead_letter_topic` in its definition, then `holdfast apply deploy {processor}`.",
            processor=processor,
        )
    found = newest_of(open_topics(settings, spec.name), spec.name, count)
    if as_json:
        print_json({"processor": processor, "topic": spec.name, "letters": [_as_letter(each) for each in found]})
        return
    for each in found:
        typer.echo(_in_words(each))
    if not found:
        typer.echo(f"{spec.name} has no dead letter.")
    else:
        typer.echo(f"To send the messages again after a correction: `holdfast dead-letters {processor} --replay`.")


def _as_letter(found: Found) -> dict[str, Any]:
    letter, document = read_letter(found[1]), as_document(found)
    return {
        **{name: document[name] for name in ("partition", "offset", "time", "key", "value")},
        "kind": letter.kind or None,
        "source": {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset},
        "error": letter.error,
        "reason": letter.reason,
        "action": letter.action,
        "code_version": letter.version,
        "headers": [each for each in document["headers"] if not each[0].startswith("holdfast.")],
    }


def _in_words(found: Found) -> str:
    letter, document = read_letter(found[1]), as_document(found)
    place = f"{letter.topic}[{letter.partition}] offset {letter.offset}" if letter.topic else "no place is told"
    lines = [
        f"{document['time']}  {place}  {letter.error or 'no error is told'}: {shown(letter.reason)}",
        f"    {shown(document['key'])}  {shown(document['value'])}",
    ]
    return "\n".join([*lines, *([f"    What to do: {shown(letter.action)}"] if letter.action else [])])
