"""Private files with the properties and options of a Spark JVM, which may contain secrets.

Every user of a machine can read command lines. So a JVM reads its properties and options from files with mode 0600. The
command line contains only the paths of the files. The files are deleted after the JVM has read them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.infra.system.files import write_private

#: Names of the properties with options of the driver's JVM. Spark would put these options on the JVM's command line.
JVM_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")


@contextmanager
def private_properties(folder: Path, name: str, configuration: Mapping[str, str]) -> Iterator[Path]:
    """Context manager that writes properties to files in ``folder``; yields the path for ``--properties-file``.

    The files are deleted at the end of the block. So the block must wait until the JVM has read the files, for example
    until the JVM answers.
    """
    properties = folder / f"{name}.properties"
    written = [properties]
    try:
        told = dict(configuration)
        for option in JVM_OPTIONS:
            if told.get(option):
                file = folder / f"{name}.{option.rpartition('.')[2]}"
                written.append(file)
                write_private(file, java_arguments(told[option]))
                told[option] = _word(f"@{file}")  # Java replaces the argument `@file` by the content of the file
        write_private(properties, properties_text(told))
        yield properties
    finally:
        for file in written:
            file.unlink(missing_ok=True)


def properties_text(values: Mapping[str, str]) -> str:
    """The text of a Java properties file with these values."""
    return "".join(f"{_escaped(name, ' :=')} {_escaped(value, '')}\n" for name, value in values.items())


def java_arguments(options: str) -> str:
    """The text of a Java argument file (``@file``) with these options, one quoted option on each line."""
    return "".join('"' + re.sub(r'([\\"])', r"\\\1", word) + '"\n' for word in shlex.split(options))


def _escaped(text: str, more: str) -> str:
    """A name or value, escaped for a Java properties file.

    A leading space is escaped too, because readers skip leading spaces.
    """
    for seen, written in (
        ("\\", "\\\\"),
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\t", "\\t"),
        *((one, f"\\{one}") for one in more),
    ):
        text = text.replace(seen, written)
    return re.sub(r"^([ #!])", r"\\\1", text)


def _word(text: str) -> str:
    """One word, quoted in the syntax of Spark's option properties."""
    return '"' + re.sub(r'([\\"])', r"\\\1", text) + '"' if re.search(r"[\s'\"\\]", text) else text
