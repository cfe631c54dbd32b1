"""Which Java installation is chosen, and which error is raised when there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.infra.setup.java import WHEEL, Java, NoJava, find_java, spark_java_home


def fake_java(home: Path, says: str, exit_code: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    executable.chmod(0o755)
    return executable


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    fake_java(tmp_path / "path", 'openjdk version "17.0.9"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")})
    assert (found.version, found.source, found.home) == (21, "JAVA_HOME", tmp_path / "home")


def test_an_old_java_home_is_passed_over_for_a_newer_java_on_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'java version "1.8.0_292"')
    fake_java(tmp_path / "path", 'openjdk version "17.0.9"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")})
    assert (found.version, found.source) == (17, "PATH")


def test_the_wheel_serves_a_machine_without_java() -> None:
    found = find_java({})
    assert found.source == WHEEL
    assert found.version >= 21
    subprocess.run([str(found.executable), "-version"], check=True, capture_output=True)


def test_without_any_java_the_error_names_what_was_tried_and_why_it_was_refused(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", 'java version "11.0.2"')
    broken = fake_java(tmp_path / "path", "Segmentation fault", exit_code=139)
    with pytest.raises(NoJava) as failure:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(broken.parent)}, wheel=False)
    assert f"JAVA_HOME: {old} is Java 11" in str(failure.value)
    assert f"PATH: {broken} exited with 139" in str(failure.value)
    assert "JAVA_HOME" in failure.value.action


def test_an_empty_java_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoJava) as failure:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, wheel=False)
    assert f"there is no {tmp_path / 'bin' / 'java'}" in failure.value.message
    assert "PATH: no java" in failure.value.message


def test_spark_gets_the_own_home_of_a_full_java(tmp_path: Path) -> None:
    java = Java(tmp_path, tmp_path / "bin" / "java", 17, "PATH")
    assert spark_java_home(java, tmp_path / "cache") == tmp_path
    assert not (tmp_path / "cache").exists()


def test_spark_gets_a_launcher_that_drops_the_one_module_which_the_wheel_lacks(tmp_path: Path) -> None:
    executable = tmp_path / "real java"
    executable.write_text('#!/bin/sh\nfor word do echo "[$word]"; done\n')
    executable.chmod(0o755)
    home = spark_java_home(Java(tmp_path, executable, 21, WHEEL), tmp_path / "cache")
    # The path of a Java executable may contain a space, and so may its arguments.
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main", "$x"]
    told = subprocess.run([str(home / "bin" / "java"), *arguments], check=True, capture_output=True, text=True).stdout
    assert told.split("\n")[:-1] == ["[-Xmx1g]", "[-cp]", "[a b]", "[Main]", "[$x]"]
    assert spark_java_home(Java(tmp_path, executable, 21, WHEEL), tmp_path / "cache") == home


def test_the_wheels_java_runs_through_the_launcher(tmp_path: Path) -> None:
    home = spark_java_home(find_java({}), tmp_path)
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
