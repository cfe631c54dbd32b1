"""The public API. Every name in ``holdfast.__all__`` exists and is documented, and its import is fast."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = (PROJECT / "holdfast" / "__init__.py").read_text()
HEAVY = ("confluent_kafka", "rocksdict", "numpy", "pyspark", "dagster", "pydantic", "msgspec", "structlog")


def typed_imports() -> dict[str, str]:
    """The names that type checkers see, each with its module."""
    block = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    found = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_all_is_sorted_and_the_same_for_people_and_type_checkers():
    assert holdfast.__all__ == sorted(set(holdfast.__all__))
    assert typed_imports() == holdfast._HOMES
    assert sorted(holdfast._HOMES) == holdfast.__all__
    assert set(holdfast.__all__) <= set(dir(holdfast))


@pytest.mark.parametrize("name", holdfast.__all__)
def test_each_public_name_is_there_and_documented(name):
    public = getattr(holdfast, name)
    assert public.__module__ == holdfast._HOMES[name]
    assert public.__name__ == name
    written = inspect.getdoc(public)
    assert written
    assert not written.startswith(f"{name}("), "a docstring that the class has made by itself"


@pytest.mark.parametrize("name", holdfast.__all__)
def test_the_package_tells_what_a_name_is_for(name):
    assert re.search(rf"\b{name}\b", holdfast.__doc__) or name in {
        *("ApplicationInvalid", "KafkaFailed", "ProcessingFailed", "RecordTooLarge", "StateFailed", "ValueNotStorable"),
    }


def test_errors_have_one_base():
    errors = [getattr(holdfast, name) for name in holdfast.__all__]
    errors = [each for each in errors if isinstance(each, type) and issubclass(each, Exception)]
    errors.remove(holdfast.NotFound)  # `NotFound` is raised by a user's lookup function, not by Holdfast
    assert len(errors) == 11
    assert all(issubclass(each, holdfast.HoldfastError) for each in errors)


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(AttributeError, match="'Aplication'; public names are Adopt, "):
        _ = holdfast.Aplication
    with pytest.raises(ImportError):
        exec("from holdfast import Aplication")


def loaded_by(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after it has run this code."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in ran.stdout.split()}


def test_importing_the_package_loads_nothing_of_it():
    assert loaded_by("import holdfast, holdfast as h; dir(h)").isdisjoint(HEAVY)


def test_declaring_an_application_loads_no_database_no_spark_and_no_dagster():
    code = "from holdfast import Application; a = Application(); a.dataframe(a.topic('t')).print(); a.topology()"
    assert loaded_by(code).isdisjoint({"rocksdict", "pyspark", "dagster"})


def test_examples_import_public_names_from_the_package():
    """Examples in the documentation import every public name from ``holdfast``, as users should."""
    pages = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    strays = [
        (page.name, module, name.strip())
        for page in pages
        for module, names in re.findall(r"^from (holdfast\.[\w.]+) import ([\w, ]+)$", page.read_text(), re.MULTILINE)
        for name in names.split(",")
        if name.strip() in holdfast.__all__
    ]
    assert strays == []
