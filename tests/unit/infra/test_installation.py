"""Optional dependencies: the code's table equals pyproject.toml, and an error shows the command that installs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.infra import installation
from holdfast.infra.installation import EXTRAS, ExtraMissing, missing_in, naming_extras

PROJECT = Path(__file__).resolve().parents[3]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
#: Maps a module to its distribution, for modules whose distribution has another name.
DISTRIBUTION = {
    "yaml": "pyyaml",
    "markdown_it": "markdown-it-py",
    "grpc_status": "grpcio-status",
    "google": "googleapis-common-protos",
    "fastavro": "confluent-kafka[avro]",
    "jsonschema": "confluent-kafka[json]",
    "google.protobuf": "confluent-kafka[protobuf]",
    **dict.fromkeys(("authlib", "cachetools"), "confluent-kafka[schemaregistry]"),
}
#: Code that a new Python process runs first. It simulates an installed wheel without these modules.
WITHOUT = """
import sys
for name in {modules!r}:
    sys.modules[name] = None
from pathlib import Path
import holdfast.infra.installation as installation
installation.CHECKOUT = None
installation.SET_UP = "python -m holdfast.infra.machine"
"""


def names(requirements: list[str]) -> set[str]:
    """The names of the distributions, without their extras.

    ``confluent-kafka`` keeps its extras in the name, because they install further libraries.
    """
    kept = {re.split("[<>=]", line)[0] for line in requirements}
    return {name if name.startswith("confluent-kafka[") else name.split("[")[0] for name in kept}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_has_the_libraries_of_the_extra(extra: str) -> None:
    declared = names(DECLARED["optional-dependencies"][extra]) - {"holdfast"}
    assert {DISTRIBUTION.get(module, module.replace("_", "-")) for module in EXTRAS[extra][1]} == declared


def test_every_extra_is_in_the_table_and_in_all() -> None:
    extras = DECLARED["optional-dependencies"]
    assert set(extras) == {*EXTRAS, "all"}
    assert extras["all"] == [f"holdfast[{','.join(EXTRAS)}]"]


def test_no_library_is_in_two_extras_or_in_the_core() -> None:
    modules = [module for _, modules in EXTRAS.values() for module in modules]
    assert len(modules) == len(set(modules))
    assert names(DECLARED["dependencies"]) & {DISTRIBUTION.get(module, module) for module in modules} == set()


def test_the_lock_fits_every_range() -> None:
    """The locked versions, which development and the demo use, satisfy the version ranges of the package."""
    from packaging.requirements import Requirement

    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (PROJECT / "requirements.lock").read_text(), re.M))
    lines = [*DECLARED["dependencies"], *(line for each in DECLARED["optional-dependencies"].values() for line in each)]
    asked = [Requirement(line) for line in lines if not line.startswith("holdfast[")]
    assert [str(each) for each in asked if not each.specifier.contains(locked[each.name])] == []


def test_a_wrapped_import_error_is_recognised_and_another_one_passes() -> None:
    wrapped = ImportError("Install s3fs to access S3")
    wrapped.__cause__ = ModuleNotFoundError("No module named 's3fs'", name="s3fs")
    found = missing_in(wrapped)
    assert found is not None
    assert found.fields == {"library": "s3fs", "extra": "s3"}
    assert missing_in(ValueError("no import at all")) is None
    with pytest.raises(ModuleNotFoundError), naming_extras():
        raise ModuleNotFoundError("No module named 'shop'", name="shop")
    with pytest.raises(ExtraMissing, match="pyspark is not installed"), naming_extras():
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")


def test_the_line_is_pip_for_a_wheel_and_set_up_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation.install_line("s3") == "make setup"
    monkeypatch.setattr(installation, "CHECKOUT", None)
    assert installation.install_line("s3") == "pip install 'holdfast[s3]'"


def test_a_command_that_needs_several_extras_names_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without extras, `holdfast up` once named only the first missing extra, and the next extra at the next start."""
    monkeypatch.setattr(installation, "CHECKOUT", None)
    installation.check_extras("operate", "columns")
    for module in ("sqlalchemy", "supervisor", "numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraMissing) as missing:
        installation.check_extras("dagster", "operate", "columns")
    assert missing.value.fields == {"library": "sqlalchemy, numpy", "extra": "operate,columns"}
    assert missing.value.action == "Run `pip install 'holdfast[operate,columns]'`."


COMMAND = "from holdfast.orchestration.cli import main; sys.exit(main({!r}))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        pytest.param("operate", COMMAND.format(["status"]), id="status without operate", marks=pytest.mark.thorough),
        pytest.param(
            "operate",
            COMMAND.format(["plan", "deploy", "fleet"]),
            id="a verb without operate",
            marks=pytest.mark.thorough,
        ),
        pytest.param("dagster", COMMAND.format(["up"]), id="up without dagster"),
        pytest.param(
            "spark",
            COMMAND.format(["warehouse", "register"]),
            id="the catalog without spark",
            marks=pytest.mark.thorough,
        ),
        pytest.param("spark", COMMAND.format(["up"]), id="up without spark", marks=pytest.mark.thorough),
        pytest.param("demo", COMMAND.format(["demo"]), id="the demo without its flights", marks=pytest.mark.thorough),
        pytest.param(
            "spark", "import holdfast; holdfast.read_table", id="read_table without spark", marks=pytest.mark.thorough
        ),
        pytest.param("spark", "import holdfast; holdfast.state_at", id="state_at without spark"),
        pytest.param(
            "columns",
            "from holdfast.processors.engine.state.buckets import BucketPrints\n"
            "with installation.naming_extras(): BucketPrints()",
            id="an audit without numpy",
        ),
        pytest.param(
            "s3",
            "from holdfast.infra.storage.objects import FsspecObjects; FsspecObjects('s3://bucket/prefix')",
            id="checkpoints in S3 without s3",
        ),
        pytest.param(
            "postgres",
            "from holdfast.infra.database.schema import open_engine; open_engine('postgresql+psycopg://a@b/c')",
            id="a registry on Postgres without postgres",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_needs_a_missing_extra_says_how_to_install_it(extra: str, code: str, tmp_path: Path) -> None:
    program = WITHOUT.format(modules=EXTRAS[extra][1]) + code
    environment = {"HOLDFAST_HOME": str(tmp_path / "home"), "HOLDFAST_CACHE": str(tmp_path / "cache"), "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (64, 1), ran.stderr
    last = " ".join(ran.stderr[-1500:].split())
    assert f"Run `pip install 'holdfast[{extra}]'`" in last
    assert ("Traceback" in ran.stderr) == code.startswith(("import holdfast", "from holdfast.infra", "from holdfast.p"))
