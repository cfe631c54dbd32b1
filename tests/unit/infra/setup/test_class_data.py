"""Class data archives of JVMs. Real JVMs write and read them. Archives that other users could write are not used."""

import os
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.setup.class_data import ClassData, class_data
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import Java, find_java
from holdfast.infra.spark.configuration import jvm_configuration, spark_class_data
from holdfast.infra.system.process import completed


@pytest.fixture(scope="module")
def java() -> Java:
    return find_java()


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    file = tmp_path / "jars" / "one.jar"
    file.parent.mkdir()
    file.write_bytes(b"jar")
    return file


def _archive(archive: ClassData) -> ClassData:
    """Write an archive, as a JVM does that records its classes and ends."""
    (option, *_) = archive.recording()
    written = Path(option.partition("=")[2])
    written.write_bytes(b"classes")
    written.chmod(0o400)
    assert not archive.is_usable, "it is no archive before its JVM has ended"
    assert archive.keep()
    return archive


@pytest.mark.thorough
def test_a_jvm_reads_the_classes_that_another_wrote_and_starts_without_a_damaged_archive(
    tmp_path: Path, java: Java
) -> None:
    settings = load_settings()
    jars = fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings))
    archive = class_data(tmp_path, "tool", java, jars)

    def run(*options: str) -> str:
        command = [str(java.executable), *options, "-cp", os.pathsep.join(map(str, jars))]
        done = completed([*command, "kafka.tools.StorageTool", "random-uuid"], 60.0)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def from_archive(told: str) -> bool:
        return any("StorageTool" in line and "shared objects file" in line for line in told.splitlines())

    assert archive.options() == ()
    run(*archive.recording())
    assert archive.keep()
    log = "-Xlog:class+load:stdout"
    assert from_archive(run(*archive.options(), log))
    assert len(run(*archive.options()).split()) == 1, "nothing but the answer is printed"
    archive.file.chmod(0o600)
    whole = archive.file.read_bytes()
    half = len(whole) // 2
    archive.file.write_bytes(whole[:half] + bytes(4096) + whole[half + 4096 :])
    assert archive.options(), "its size is right"
    assert not from_archive(run(*archive.options(), log))
    assert len(run(*archive.options()).split()) == 1
    # a JVM would crash with a truncated archive, so the archive must not be used
    archive.file.write_bytes(whole[:half])
    assert archive.options() == ()


def test_an_archive_that_others_could_have_written_is_not_used(tmp_path: Path, java: Java, jar: Path) -> None:
    archive = _archive(class_data(tmp_path, "spark", java, [jar]))
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.file}"
    archive.file.chmod(0o660)
    assert archive.options() == ()
    archive.file.chmod(0o600)
    assert archive.options()
    archive.file.parent.chmod(0o777)
    assert archive.options() == ()


def test_other_jars_or_another_java_have_another_archive(tmp_path: Path, java: Java, jar: Path) -> None:
    archive = class_data(tmp_path, "spark", java, [jar])
    assert class_data(tmp_path, "spark", java, [jar]) == archive
    other = Java(home=java.home, executable=java.executable, version=java.version + 1, source=java.source)
    assert class_data(tmp_path, "spark", other, [jar]).file != archive.file
    jar.write_bytes(b"another jar")
    assert class_data(tmp_path, "spark", java, [jar]).file != archive.file


def test_archives_of_jars_that_are_gone_are_deleted(tmp_path: Path, java: Java, jar: Path) -> None:
    former = _archive(class_data(tmp_path, "spark", java, [jar]))
    jar.unlink()
    other = jar.with_name("two.jar")
    other.write_bytes(b"jar")
    present = _archive(class_data(tmp_path, "spark", java, [other]))
    assert not former.file.exists()
    assert present.is_usable


@pytest.mark.parametrize(
    ("master", "conf", "alone"),
    [
        ("local[*]", {}, True),
        ("local", {}, True),
        ("warm", {}, True),
        ("local-cluster[1,1,1024]", {}, False),
        ("yarn", {}, False),
        ("k8s://https://cluster:6443", {}, False),
        ("local[*]", {"spark.jars": "mine.jar"}, False),
        ("local[*]", {"spark.driver.extraClassPath": "mine.jar"}, False),
    ],
)
def test_jars_are_sent_to_executors_unless_the_driver_runs_all(
    master: str, conf: dict[str, str], alone: bool, tmp_path: Path, java: Java
) -> None:
    settings = load_settings(home=tmp_path, spark={"master": master, "conf": conf})
    told = jvm_configuration(settings, [Path("/jars/a.jar"), Path("/jars/b.jar")], tmp_path)
    assert told.get("spark.driver.extraClassPath") == ("/jars/a.jar:/jars/b.jar" if alone else None)
    assert told.get("spark.jars") == (None if alone else "/jars/a.jar,/jars/b.jar")
    assert (spark_class_data(settings, java, []) is not None) is alone
