"""Shell completion for names of processors and stores that were deployed from this home folder.

Invariants:
    - A completion never fails and starts nothing. If Holdfast's registry (the database of deployments) is missing or
      does not answer, the list is empty.
    - A completion is quick: it reads the registry's SQLite file directly, and imports no processor, Kafka client or
      database library.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress

#: Maximum seconds to wait if another process has locked Holdfast's registry database.
WAIT_S = 0.2


def processors(incomplete: str) -> list[str]:
    """The names of deployed processors that begin with ``incomplete``."""
    return sorted({name for name, _ in _deployed() if name.startswith(incomplete)})


def stores(incomplete: str) -> list[str]:
    """The names of stores that begin with ``incomplete``, for the shell's completion.

    If the command line already names a processor, the result has only this processor's stores. Otherwise it has the
    stores of all processors.
    """
    known = _deployed()
    asked = {name for name, _ in known} & _typed()
    found = {store for name, names in known for store in names if not asked or name in asked}
    return sorted(store for store in found if store.startswith(incomplete))


def _typed() -> set[str]:
    """The words that the user has typed so far on the command line, from the variables of the shell.

    Typer's own parsing can't be used, because it stops at an option that has no value yet.
    """
    bash = os.environ.get("COMP_WORDS", "")  # tidy: allow-environment because bash sets this variable
    others = os.environ.get("_TYPER_COMPLETE_ARGS", "")  # tidy: allow-environment because zsh and fish use this one
    return {*bash.split(), *others.split()}


def _deployed() -> list[tuple[str, list[str]]]:
    """Returns a pair for each release in the registry: the processor's name, and the names of its stores."""
    # An error during completion must not disturb the shell. The command itself will report the error.
    with suppress(Exception):
        import sqlite3  # imported late, because `holdfast --help` does not need SQLite

        from holdfast.infra.settings import load_settings

        settings = load_settings()
        if settings.registry_url is not None or not settings.paths.registry.is_file():
            return []
        place = f"file:{settings.paths.registry}?mode=ro"
        with closing(sqlite3.connect(place, uri=True, timeout=WAIT_S)) as registry:
            found = registry.execute("SELECT processor, shape FROM releases").fetchall()
        return [(name, [str(store["name"]) for store in json.loads(shape)["stores"]]) for name, shape in found]
    return []
