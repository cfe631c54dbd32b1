"""``holdfast orphans``: lists topics, groups, folders, checkpoints and tables that no registered store owns (orphans).

The verb ``clean`` archives and deletes orphans. The verb ``put-back`` recreates a deleted topic.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.options import Json, command_settings, print_json
from holdfast.orchestration.commands.tables import print_table


def orphans(as_json: Json = False) -> None:
    """List topics, groups, local state, checkpoints and tables that no registered store owns."""
    from holdfast.orchestration.verbs import open_verbs
    from holdfast.processors.lifecycle.verbs.clean import as_document

    with open_verbs(command_settings()) as verbs:
        facts = verbs.orphans()
    rows = [as_document(each, facts) for each in facts.subjects]
    if as_json:
        print_json({"orphans": rows, "unseen": facts.unseen})
        return
    console = Console()
    table = Table("kind", "name", "processor", "bytes", "why", "archive")
    for row in rows:
        size = "" if row["size_bytes"] is None else f"{row['size_bytes']:,}"
        cells = (row["kind"], row["name"], row["processor"], size, row["why"], row["state"])
        table.add_row(*map(escape, cells))
    if rows:
        print_table(table, console)
    else:
        console.print("No orphans: every resource has an owner.")
    for sentence in facts.unseen:
        console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)
