"""Files for the start of a Spark JVM: its properties and its options, which may hold secrets.

Every user of a machine can read command lines. So a JVM reads everything from files of mode 0600, which are deleted
once the JVM has read them. The command line has only the paths of these files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.infra.system.files import write_private

#: Properties with options of the driver's JVM, which Spark puts on its command line.
JVM_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")


@contextmanager
def private_properties(folder: Path, name: str, configuration: Mapping[str, str]) -> Iterator[Path]:
    """Write the properties into files of the folder; yields the path for ``spark-submit --properties-file``.

    The files are deleted at the end of the block. By then the JVM must have read them, which is certain once it
    answers.
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
                told[option] = _word(f"@{file}")  # Java reads its arguments from such a file
        write_private(properties, properties_text(told))
        yield properties
    finally:
        for file in written:
            file.unlink(missing_ok=True)


def properties_text(values: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{_escaped(name, ' :=')} {_escaped(value, '')}\n" for name, value in values.items())


def java_arguments(options: str) -> str:
    """The text of a Java argument file with these options, one on each line, quoted as Spark does."""
    return "".join('"' + re.sub(r'([\\"])', r"\\\1", word) + '"\n' for word in shlex.split(options))


def _escaped(text: str, more: str) -> str:
    """A name or value in the syntax of Java's properties files, whose readers skip leading spaces."""
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
    """One word, quoted in Spark's syntax of options."""
    return '"' + re.sub(r'([\\"])', r"\\\1", text) + '"' if re.search(r"[\s'\"\\]", text) else text
