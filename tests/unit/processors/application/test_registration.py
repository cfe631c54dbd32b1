"""Processors as plain Python modules: which processors a module declares, and errors with file and line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import Settings, load_settings
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.application.registration import (
    ProcessorBroken,
    ProcessorDefinition,
    ProcessorUnknown,
    load_processor,
    load_processors,
)

TWO = """
from holdfast import Application
refunds = Application("unused:1", consumer_group="refunds")
refunds.dataframe(refunds.topic("in"))
orders = also = Application("unused:1", consumer_group="orders")
orders.dataframe(orders.topic("in"))
NUMBER = 5
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A project whose package has a new name for each test, because Python imports each module name only once."""
    package = f"shop_of_{tmp_path.name}"
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / package).mkdir()
    (tmp_path / package / "processors.py").write_text(TWO)
    (tmp_path / "holdfast.toml").write_text(f'processors = ["{package}.processors"]\n')
    return load_settings(project=tmp_path)


def module_of(settings: Settings) -> str:
    return settings.processors[0]


def test_a_module_means_each_application_at_its_top_level_once(shop: Settings) -> None:
    found = load_processors(shop)
    assert [(each.name, each.target.partition(":")[2]) for each in found if isinstance(each, ProcessorDefinition)] == [
        ("refunds", "refunds"),
        ("orders", "orders"),
    ]


def test_one_processor_is_loaded_by_its_target(shop: Settings) -> None:
    assert load_processor(shop, f"{module_of(shop)}:also").name == "orders"
    with pytest.raises(ProcessorUnknown, match="has 2 processors: .*:refunds, .*:orders"):
        load_processor(shop, module_of(shop))
    with pytest.raises(ProcessorBroken, match="is a int, expected an Application"):
        load_processor(shop, f"{module_of(shop)}:NUMBER")


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("\nimport nothing_of_this_name\n", 2, "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def f(:\n", 1, "SyntaxError"),
        (
            "from holdfast import Application\n\napp = Application('b:1', consumer_group='a b')\n",
            3,
            "can't be used in Kafka",
        ),
        ("from holdfast import Application\napp = Application('b:1', commit_every=-1)\n", 2, "commit_every"),
        (
            "import json\nfrom holdfast import Application\napp = Application('b:1')\njson.loads('{')\n",
            4,
            "JSONDecodeError",
        ),
    ],
)
def test_an_application_that_can_not_be_imported_is_told_with_file_and_line(
    shop: Settings, code: str, line: int, said: str
) -> None:
    module = shop.project / module_of(shop).partition(".")[0] / "processors.py"  # type: ignore[operator]
    module.write_text(code)
    with pytest.raises(ProcessorBroken) as refused:
        load_processor(shop, f"{module_of(shop)}:app")
    assert f"{module}, line {line}: " in refused.value.message
    assert said in refused.value.message
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION


def test_a_module_without_an_application_is_told(shop: Settings) -> None:
    (shop.project / module_of(shop).partition(".")[0] / "processors.py").write_text("x = 1\n")  # type: ignore[operator]
    (broken,) = load_processors(shop)
    assert isinstance(broken, BrokenDefinition)
    assert "has no Application at its top level" in broken.sentence


def test_two_processors_of_one_name_are_told(shop: Settings) -> None:
    both = shop.model_copy(update={"processors": (*shop.processors, f"{module_of(shop)}:orders")})
    again = load_processors(both)[-1]
    assert isinstance(again, BrokenDefinition)
    assert "Two definitions are named orders" in again.sentence
    assert f"The other one is {module_of(shop)}:orders." in f"{again.sentence}."


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("{package}.processor", "there is no module {package}.processor; the nearest is {package}.processors."),
        ("{package}s.processors:app", "there is no module {package}s; the nearest is {package}."),
        ("{package}.processors:order", "{package}.processors has no order."),
        ("{package}/processors.py", "it is a path, expected a module: {package}.processors."),
        ("./{package}/processors.py", "it is a path, expected a module: {package}.processors."),
    ],
)
def test_a_target_that_is_not_there_is_told_with_the_nearest_and_no_line_of_a_library(
    shop: Settings, wanted: str, said: str
) -> None:
    package = module_of(shop).partition(".")[0]
    target = wanted.format(package=package)
    with pytest.raises(ProcessorBroken) as refused:
        load_processor(shop, target)
    assert refused.value.message == f"{target} can't be imported: {said.format(package=package)}"
    assert f"as in `{package}" in refused.value.action


def test_what_a_definition_is_refused_for_is_told_once_with_its_own_edit(shop: Settings) -> None:
    module = shop.project / module_of(shop).partition(".")[0] / "processors.py"  # type: ignore[operator]
    module.write_text("from holdfast import Application\napp = Application('b:1', commit_every=-1)\n")
    with pytest.raises(ProcessorBroken) as refused:
        load_processor(shop, module_of(shop))
    assert "line 2: ApplicationInvalid: " in refused.value.message
    assert "What to do" not in refused.value.message
    assert "commit_every" in refused.value.action


@pytest.mark.parametrize("last", ["app.run()", "import sys; sys.exit(3)"])
def test_a_module_that_runs_or_ends_the_process_when_it_is_imported_is_told(shop: Settings, last: str) -> None:
    """The first example of README ends with `app.run()`. A command that imports it must not start a worker."""
    module = shop.project / module_of(shop).partition(".")[0] / "processors.py"  # type: ignore[operator]
    module.write_text(f"from holdfast import Application\napp = Application('b:1')\n{last}\n")
    (broken,) = load_processors(shop)
    assert isinstance(broken, BrokenDefinition)
    assert f"{module}, line 3: " in broken.sentence
    assert ("__main__" in broken.action) == (last == "app.run()")
