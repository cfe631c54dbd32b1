"""Names for shell completion: processors and stores that were deployed from this home.

Invariants:
    - A completion never fails and starts nothing: without a registry, or with one that does not answer, it is empty.
    - It is quick: it reads the registry's file itself, and imports no definition, no Kafka and no database library.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress

#: How long a locked registry is waited for, seconds.
WAIT_S = 0.2


def processors(incomplete: str) -> list[str]:
    """The names of deployed processors with this prefix."""
    return sorted({name for name, _ in _deployed() if name.startswith(incomplete)})


def stores(incomplete: str) -> list[str]:
    """The stores of the processor that was typed before, or of all."""
    known = _deployed()
    asked = {name for name, _ in known} & _typed()
    found = {store for name, names in known for store in names if not asked or name in asked}
    return sorted(store for store in found if store.startswith(incomplete))


def _typed() -> set[str]:
    """The words of the command line so far.

    An option without its value stops typer's parsing of the words before it, so the code reads the words from the
    shell.
    """
    bash = os.environ.get("COMP_WORDS", "")  # tidy: allow-environment because bash leaves them here
    others = os.environ.get("_TYPER_COMPLETE_ARGS", "")  # tidy: allow-environment because zsh and fish do so here
    return {*bash.split(), *others.split()}


def _deployed() -> list[tuple[str, list[str]]]:
    """Each recorded release: its processor and its stores."""
    with suppress(Exception):  # whatever the error is, the shell must stay usable; the command itself reports the error
        import sqlite3  # neither is needed for `holdfast --help`

        from holdfast.infra.settings import load_settings

        settings = load_settings()
        if settings.registry_url is not None or not settings.paths.registry.is_file():
            return []
        place = f"file:{settings.paths.registry}?mode=ro"
        with closing(sqlite3.connect(place, uri=True, timeout=WAIT_S)) as registry:
            found = registry.execute("SELECT processor, shape FROM releases").fetchall()
        return [(name, [str(store["name"]) for store in json.loads(shape)["stores"]]) for name, shape in found]
    return []
