"""``holdfast init``: creates a new project in a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.orchestration.commands.options import Json, print_json
from holdfast.orchestration.project.new import make_project


def init(
    folder: Annotated[Path, typer.Argument(help="Name of the project, or its folder.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make a new project: a processor, its test, Dagster's definitions and settings."""
    place = folder.expanduser().resolve()
    made = make_project(place)
    if as_json:
        print_json({"folder": str(place), "files": [str(path.relative_to(place)) for path in made]})
        return
    typer.echo(f"Made {place}:")
    for path in made:
        typer.echo(f"  {path.relative_to(place)}")
    typer.echo("Next:")
    if place != Path.cwd():
        typer.echo(f"  cd {folder}")
    typer.echo("  python -m pytest -q    test the processor on a Kafka in memory")
    typer.echo("  holdfast up            start a broker and Dagster, and deploy the processor")
