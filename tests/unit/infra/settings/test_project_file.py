"""Settings from a project file: which file is used, which source has precedence, and errors with file and line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import PROJECT, SettingsInvalid, load_settings, project_file
from holdfast.infra.settings.explained import explain, find_explained
from holdfast.infra.settings.flags import take_flags
from holdfast.infra.settings.project_file import ProjectInvalid, find_project
from holdfast.infra.settings.project_source import origin_of, project_of
from holdfast.orchestration.cli import main

FILE = """\
# every kind of place that a key can have
processors = [
    "shop.orders",  # memory_max_mb = 1
    "shop.refunds:app",
]
log_level = '''
ERROR'''
memory_max_mb = 512
kafka.bootstrap_servers = "kafka-1:9092"

[checkpoints]
"every_s" = 60
options = { key = "file-key" }

[ serving ]  # spaces
token = "a-secret-of-this-file"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a project file. Its subfolder `shop/deep` is the working folder."""
    folder = tmp_path / "shop"
    (folder / "deep").mkdir(parents=True)
    (folder / "holdfast.toml").write_text(FILE.replace("'''\nERROR'''", '"ERROR"'))
    monkeypatch.chdir(folder / "deep")
    monkeypatch.delenv("HOLDFAST_PROJECT")
    monkeypatch.delenv("HOLDFAST_CHECKPOINTS__URL")
    return folder


def test_the_file_is_found_upwards_and_gives_the_values(shop: Path) -> None:
    settings = load_settings()
    assert settings.project == shop
    assert settings.home == shop / ".holdfast"
    assert settings.workers_directory == shop
    assert settings.processors == ("shop.orders", "shop.refunds:app")
    assert settings.kafka.bootstrap_servers == "kafka-1:9092"
    assert settings.checkpoints.every_s == 60
    assert settings.memory_max_mb == 512
    assert "a-secret-of-this-file" not in repr(settings)


def test_variables_win_over_the_file_and_arguments_over_variables(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY_MAX_MB", "300")
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS__OPTIONS", '{"secret": "from-the-variable"}')
    assert load_settings().memory_max_mb == 300
    assert load_settings(memory_max_mb=400).memory_max_mb == 400
    assert load_settings().checkpoints.options == {"key": "file-key", "secret": "from-the-variable"}
    assert load_settings().checkpoints.every_s == 60


def test_an_option_of_the_command_line_wins_over_all_until_the_command_ends(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY_MAX_MB", "300")
    take_back = take_flags(None, ["memory_max_mb=600", "kafka.bootstrap_servers=b:1"])
    try:
        settings = load_settings()
        (memory,) = find_explained(settings, project_of({}), "memory_max_mb")
        assert (memory.value, memory.origin.kind, memory.origin.place) == (600, "flag", "--set memory_max_mb")
        assert settings.kafka.bootstrap_servers == "b:1"
    finally:
        take_back()
    assert load_settings().memory_max_mb == 300
    assert "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS" not in os.environ


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("memory_mx_mb=3", "there is no setting memory_mx_mb; the nearest is memory_max_mb"),
        ("memory_max_mb", "has no value"),
        ("kafka={}", "there is no setting kafka"),
    ],
)
def test_an_option_with_a_mistake_is_refused(given: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said) as refused:
        take_flags(None, [given])
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION


def test_the_nearest_file_counts_alone(shop: Path) -> None:
    (shop / "deep" / "pyproject.toml").write_text("[tool.holdfast]\nstuck_after_s = 9\n")
    settings = load_settings()
    assert (settings.project, settings.stuck_after_s, settings.memory_max_mb) == (shop / "deep", 9, 1024)
    assert settings.processors == ()


def test_a_pyproject_without_the_table_is_no_project(shop: Path) -> None:
    (shop / "deep" / "pyproject.toml").write_text('[project]\nname = "no.tool.holdfast"\n')
    assert load_settings().project == shop
    (shop / "deep" / "pyproject.toml").write_text("this is no TOML")
    assert load_settings().project == shop


def test_without_a_project_all_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_PROJECT")
    settings = load_settings()
    assert settings.project is None
    assert settings.home == PROJECT / ".holdfast"
    assert len(settings.processors) == 7


def test_the_variable_names_the_project_and_an_empty_one_none(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shop.parent / "other"
    other.mkdir()
    (other / "holdfast.toml").write_text("home = 'kept'")
    monkeypatch.setenv("HOLDFAST_PROJECT", str(other))
    assert load_settings().home == other / "kept"
    monkeypatch.setenv("HOLDFAST_PROJECT", "")
    assert load_settings().project is None
    assert load_settings(project=shop).project == shop
    monkeypatch.setenv("HOLDFAST_PROJECT", str(shop / "deep"))
    with pytest.raises(ProjectInvalid, match=r"which has no holdfast\.toml") as refused:
        load_settings()
    assert "`holdfast init my_project`" in refused.value.action


def test_two_files_in_one_folder_are_refused(shop: Path) -> None:
    (shop / "pyproject.toml").write_text("[tool.holdfast]\n")
    with pytest.raises(ProjectInvalid, match="two project files"):
        load_settings()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("memory_max = 5", "line 3: there is no setting memory_max; the nearest is memory_max_mb."),
        ("[kafka]\nbootstrap_server = 'x'", "line 4: there is no setting kafka.bootstrap_server; the nearest is kafka"),
        ("[xyzzy]\na = 1", "line 3: there is no setting xyzzy."),
        ("project = '/srv'", "line 3: there is no setting project"),
        ("stuck_after_s = 0", "line 3: setting stuck_after_s has the value 0"),
        ("kafka = 5", "line 3: setting kafka has the value 5"),
        ("[serving]\ntoken = 'hunter2'", "line 4: setting serving.token can't be used"),
        ("log_level = loud", "line 3, is not TOML: Invalid value"),
        ("processors = ['a',", "is not TOML"),
        ("definitions = 'a b'", "line 3: setting definitions has the value 'a b'"),
    ],
)
def test_a_mistake_is_told_with_its_line(shop: Path, line: str, said: str) -> None:
    (shop / "holdfast.toml").write_text(f"# a shop\n\n{line}\n")
    with pytest.raises(SettingsInvalid) as refused:
        load_settings()
    assert said in refused.value.message
    assert str(shop / "holdfast.toml") in refused.value.message
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION
    assert "hunter2" not in str(refused.value)


def test_a_variable_with_a_mistake_is_named_though_the_file_has_the_setting(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MEMORY_MAX_MB", "much")
    with pytest.raises(SettingsInvalid, match="Setting HOLDFAST_MEMORY_MAX_MB has the value 'much'"):
        load_settings()


def test_a_file_of_another_user_is_refused_unless_it_is_named(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_file.os, "geteuid", lambda: 4321)
    if os.getuid() == 0:  # root may use any file, so change the owner of this file to another user
        os.chown(shop / "holdfast.toml", 1234, -1)
    owner = (shop / "holdfast.toml").stat().st_uid
    with pytest.raises(ProjectInvalid, match=rf"belongs to another user \(uid {owner}\)"):
        load_settings()
    monkeypatch.setenv("HOLDFAST_PROJECT", str(shop))
    assert load_settings().project == shop


def test_each_setting_tells_where_its_value_comes_from(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("HOLDFAST_SERVING", '{"port": 4000}')
    project = project_of({})
    rows = {each.name: each for each in explain(load_settings(), project)}
    origins = {name: each.origin.place.removeprefix(str(shop)) for name, each in rows.items()}
    assert origins["processors"] == "/holdfast.toml, line 2"
    assert origins["memory_max_mb"] == "/holdfast.toml, line 7"
    assert origins["kafka.bootstrap_servers"] == "/holdfast.toml, line 8"
    assert origins["checkpoints.every_s"] == "/holdfast.toml, line 11"
    assert origins["checkpoints.options"] == "/holdfast.toml, line 12"
    assert origins["serving.token"] == "/holdfast.toml, line 15"
    assert origins["log_level"] == "HOLDFAST_LOG_LEVEL"
    assert origins["serving.port"] == "HOLDFAST_SERVING"
    assert origins["stuck_after_s"] == "default"
    assert rows["home"].origin.kind == "project"
    assert rows["serving.token"].value == rows["checkpoints.options"].value == "***"
    assert rows["registry_url"].value is None
    assert set(rows) >= {"kafka.client_config", "home"}
    assert "kafka" not in rows
    assert [each.name for each in find_explained(load_settings(), project, "serving")][:2] == [
        "serving.host",
        "serving.port",
    ]
    with pytest.raises(SettingsInvalid, match="the nearest is stuck_after_s"):
        find_explained(load_settings(), project, "stuck_after")


def test_a_text_over_several_lines_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(FILE)
    found = find_project(tmp_path, None)
    assert found is not None
    assert origin_of(("memory_max_mb",), found).place.endswith("line 8")


def test_a_working_folder_that_was_deleted_has_no_project(tmp_path: Path) -> None:
    # Import `project_of` before the folder is deleted. In a deleted working folder, Python 3.13.0 raises in some
    # imports.
    code = (
        "import os\n"
        "from holdfast.infra.settings.project_source import project_of\n"
        f"os.chdir({str(tmp_path)!r}); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "assert project_of({}) is None\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_PROJECT"}
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True)


def test_the_command_shows_values_origins_and_meanings_and_no_secret(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", "stuck_after_s=7", "config", "--changed"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["project"] == str(shop / "holdfast.toml")
    rows = {each["name"]: each for each in document["settings"]}
    assert rows["stuck_after_s"] == {
        "name": "stuck_after_s",
        "variable": "HOLDFAST_STUCK_AFTER_S",
        "value": 7.0,
        "source": {"kind": "flag", "place": "--set stuck_after_s"},
        "secret": False,
        "meaning": "Silence of a processor's loop after which it counts as stuck, seconds.",
    }
    assert (rows["serving.token"]["value"], rows["serving.token"]["secret"]) == ("***", True)
    assert "standby_replicas" not in rows
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "memory_max_mb = 512  (holdfast.toml, line 7)" in said
    assert "a-secret-of-this-file" not in said
    assert load_settings().stuck_after_s == 30
    assert main(["config", "memory_max"]) == EXIT_BAD_CONFIGURATION
    assert "the nearest is memory_max_mb" in " ".join(capsys.readouterr().err.split())
