"""Whether Dagster's own configuration files can be used, said with file and line before anything is started.

Invariants:
    - Reading only; what Dagster itself would refuse later is refused here, in the file's own terms.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster_postgres.utils import DagsterPostgresException

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError


class DagsterConfigInvalid(HoldfastError):
    """A configuration file of Dagster's can't be used. Fields: file, line (from 1; None where no line is to blame)."""

    exit_code = EXIT_BAD_CONFIGURATION


class DagsterDatabaseAway(HoldfastError):
    """The database that ``dagster.yaml`` names does not answer. Field: file."""

    exit_code = EXIT_BAD_CONFIGURATION


def check_dagster_config(home: Path, workspace: Path) -> None:
    """Check ``dagster.yaml`` in the home, and the workspace.

    Args:
        home: DAGSTER_HOME.
        workspace: The file that names the code locations.

    Raises:
        DagsterConfigInvalid: One is no YAML, or Dagster does not know what it says.
        DagsterDatabaseAway: Its database refuses, or does not answer.
    """
    instance = home / "dagster.yaml"
    for file in (instance, workspace):
        _parse(file)
    try:
        with dg.DagsterInstance.from_config(str(home)) as opened:
            _ = opened.run_coordinator, opened.run_launcher, opened.scheduler  # made when they are first asked for
    except dg.DagsterInvalidConfigError as invalid:
        first = invalid.errors[0]
        path = [str(entry.field_name) for entry in first.stack.entries if hasattr(entry, "field_name")]
        raise _invalid(instance, _line_of(instance, path, first.message), first.message) from invalid
    except DagsterPostgresException as away:
        why = str(away.__cause__ or away.__context__ or away).splitlines()[0]
        raise DagsterDatabaseAway(
            f"Dagster's database, as {instance} names it, can't be used: {why}.",
            action="Check that Postgres is up, and that DAGSTER_POSTGRES_HOST, _PORT, _DB, _USER and _PASSWORD name a "
            "database of it; see docs/operations.md.",
            file=str(instance),
        ) from None
    except Exception as failure:
        raise _invalid(instance, None, f"{type(failure).__name__}: {failure}") from failure


def _parse(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        raise _invalid(file, None if mark is None else mark.line + 1, str(wrong.problem or wrong.context)) from wrong
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise _invalid(file, None, str(wrong)) from wrong
    except OSError as wrong:
        raise _invalid(file, None, f"it can't be read: {wrong.strerror}") from wrong


def _line_of(file: Path, path: list[str], message: str) -> int | None:
    """The line of the entry that a path leads to, or of the one in it that the message quotes."""
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
        action="Correct it; or, if it is the dagster.yaml of the home folder, delete it: a right one is written again.",
        file=str(file),
        line=line,
    )
