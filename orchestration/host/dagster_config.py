"""Checks Dagster's configuration files before any service starts; an error names the file and the line.

Invariants:
    - This module only reads. It refuses every file that Dagster would refuse later.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster_postgres.utils import DagsterPostgresException

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.masking import is_secret_name, secrets_of_url

#: Dagster's default for the maximum number of concurrent runs, if ``dagster.yaml`` has no limit.
DAGSTERS_LIMIT = 10


class DagsterConfigInvalid(HoldfastError):
    """Dagster cannot use a configuration file. Fields: file, line (from 1; None when unknown)."""

    exit_code = EXIT_BAD_CONFIGURATION


class DagsterDatabaseAway(HoldfastError):
    """The database in ``dagster.yaml`` does not answer. Field: file."""

    exit_code = EXIT_BAD_CONFIGURATION


def check_dagster_config(home: Path, workspace: Path) -> None:
    """Check ``dagster.yaml`` in the folder ``home`` (DAGSTER_HOME), and the workspace file with the code locations.

    Raises:
        DagsterConfigInvalid: A file is not YAML, has an entry that Dagster refuses, or contains a secret as plain text.
        DagsterDatabaseAway: The database refuses the connection or does not answer.
    """
    instance = home / "dagster.yaml"
    for file in (instance, workspace):
        _refuse_secrets(file, _parse(file))
    try:
        with dg.DagsterInstance.from_config(str(home)) as opened:
            # Dagster creates run coordinator, launcher and scheduler on first access, and checks their configuration
            # only then.
            _ = opened.run_coordinator, opened.run_launcher, opened.scheduler
    except dg.DagsterInvalidConfigError as invalid:
        first = invalid.errors[0]
        path = [str(entry.field_name) for entry in first.stack.entries if hasattr(entry, "field_name")]
        raise _invalid(instance, _line_of(instance, path, first.message), first.message) from invalid
    except DagsterPostgresException as away:
        why = str(away.__cause__ or away.__context__ or away).splitlines()[0]
        raise DagsterDatabaseAway(
            f"Dagster cannot use the database of {instance}: {why}.",
            action="Start Postgres, and set `DAGSTER_POSTGRES_HOST`, `_PORT`, `_DB`, `_USER` and `_PASSWORD` to one of "
            "its databases (docs/operations.md).",
            file=str(instance),
        ) from None
    except Exception as failure:
        raise _invalid(instance, None, f"{type(failure).__name__}: {failure}") from failure


def run_limit(home: Path) -> int:
    """Maximum number of concurrent runs of all kinds in ``dagster.yaml``; -1 means no limit.

    ``home`` (DAGSTER_HOME) must have been checked by ``check_dagster_config``.
    """
    runs = ((_parse(home / "dagster.yaml") or {}).get("concurrency") or {}).get("runs") or {}
    return int(runs.get("max_concurrent_runs", DAGSTERS_LIMIT))


def _parse(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        line = None if mark is None else mark.line + 1
        raise _invalid(file, line, str(failure.problem or failure.context)) from failure
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        raise _invalid(file, None, str(failure)) from failure
    except OSError as failure:
        raise _invalid(file, None, f"the file cannot be read: {failure.strerror}") from failure


def _refuse_secrets(file: Path, content: Any) -> None:
    """Refuse a file with secrets, because Dagster passes the file's content to code servers on their command line."""
    for path in _secret_entries(content, ()):
        raise DagsterConfigInvalid(
            f"{file}, line {_line_of(file, [*path], '')}: {'.'.join(path)} holds a secret. Dagster "
            "would show it in the command line of its code servers, which every user of the machine can read.",
            action=f"Write `{{env: VARIABLE}}` as the value of `{path[-1]}`, and set that variable.",
            file=str(file),
            line=_line_of(file, [*path], ""),
        )


def _secret_entries(content: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the path of each entry whose value is a secret as plain text, not a reference to a variable."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _secret_entries(value, (*path, str(name)))
    elif isinstance(content, list):
        for one in content:
            yield from _secret_entries(one, path)
    elif path and isinstance(content, str) and _holds_secret(path[-1], content):
        yield path


def _holds_secret(name: str, value: str) -> bool:
    # The values of these entries are no secrets: they name an environment variable, or the key of a tag.
    if name in ("env", "key"):
        return False
    return is_secret_name(name) or ("://" in value and any(secrets_of_url(value)))


def _line_of(file: Path, path: list[str], message: str) -> int | None:
    """The line number (from 1) of the entry at ``path``; None if it is not found.

    If ``message`` quotes a key of this entry, the line number of the key is returned instead.
    """
    node = yaml.compose(file.read_text(encoding="utf-8"))
    line = None
    for name in path:
        found = _entry(node, name)
        if found is None:
            break
        line, node = found
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if f'"{key.value}"' in message:
                return int(key.start_mark.line) + 1
    return line


def _entry(node: yaml.Node | None, name: str) -> tuple[int, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((key.start_mark.line + 1, value) for key, value in node.value if key.value == name), None)


def _invalid(file: Path, line: int | None, why: str) -> DagsterConfigInvalid:
    where = f"{file}, line {line}" if line is not None else str(file)
    return DagsterConfigInvalid(
        f"{where}: {why.strip()}.",
        action="Correct that entry. To get the default `dagster.yaml` of the home folder back, delete the file and run "
        "`holdfast up`.",
        file=str(file),
        line=line,
    )
