"""``holdfast erased``: prints the certificates of a processor's erased keys, and whether a key has state again."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.orchestration.commands.options import Json, Processor, command_settings, print_json


def erased(
    processor: Processor,
    look: Annotated[
        bool,
        typer.Option("--look", help="Read all state of the running workers, and count entries of erased keys in it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the certificates of erased keys. Exit code 1: a key has state again, or a certificate proves nothing.

    A certificate names a key by a keyed hash. `--look` finds state that later messages of an erased key made.
    """
    from holdfast.orchestration.erasing import state_again
    from holdfast.orchestration.verbs import open_verbs
    from holdfast.processors.lifecycle.plans.certificates import decode, in_text

    settings = command_settings()
    with open_verbs(settings) as verbs:
        certificates = [decode(each.document) for each in verbs.registry.erasures.of(processor) if each.document]
        again = state_again(settings, verbs.registry, processor) if look else None
    rows = [
        {
            "key": each.mark,
            "begun_at": each.begun_at,
            "finished_at": each.finished_at,
            "proven": each.proven,
            "sentence": each.sentence,
            "again": None if again is None else again.get(each.mark, 0),
            "proofs": [
                {"kind": p.kind, "name": p.name, "outcome": p.outcome, "how": p.how, "at": p.at, "until": p.until}
                for p in each.proofs
            ],
        }
        for each in certificates
    ]
    if as_json:
        print_json(rows)
    else:
        for each in certificates:
            typer.echo(in_text(each))
            if again is not None and (entries := again.get(each.mark, 0)):
                typer.echo(f"  Later messages of the key made {entries} entries. Erase the key again.")
        if not certificates:
            typer.echo(f"No key of {processor} was erased.")
    if any(again or ()) or not all(each.proven for each in certificates):
        raise typer.Exit(1)
