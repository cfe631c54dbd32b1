"""Prepares what a machine needs besides Python packages: Java, the locked jars and, on request, a browser.

``make setup`` in a checkout calls ``python -m holdfast.infra.machine [--browser] [--all-jars]``. With an installed
wheel, ``holdfast demo`` and ``holdfast up`` prepare the machine themselves. The command prints one line for each part
that it finds or fetches, and is quick if all parts exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.setup.browser import find_or_install_browser
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import find_java

JAR_SETS = ("broker", "spark")
#: Name of the set of jars for tables in an object store. It is fetched only if the settings name an object store.
S3_JAR_SET = "s3"


def main(arguments: list[str]) -> int:
    """Prepare the machine; returns the process's exit code."""
    try:
        settings = load_settings()
        on_s3 = settings.warehouse.on_s3 or "--all-jars" in arguments
        prepare(settings, (*JAR_SETS, S3_JAR_SET) if on_s3 else JAR_SETS, say)
        if "--browser" in arguments:
            say(f"browser: {find_or_install_browser(say)}")
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def prepare(settings: Settings, jar_sets: Sequence[str], say: Callable[[str], None]) -> None:
    """Find Java, and fetch the jars that are not in the cache; ``say`` gets a line for each step.

    Raises:
        NoJava: No installed Java is new enough.
        HoldfastError: Jars could not be fetched, or the library that fetches jars is not installed.
    """
    java = find_java()
    say(f"Java {java.version} from {java.source} ({java.executable})")
    source = JarSource(java, settings.ivy_settings)
    # The sets are fetched in parallel, because Ivy fetches one jar after the other and mostly waits.
    with ThreadPoolExecutor() as threads:
        fetched = threads.map(lambda name: fetch_jars(name, settings.cache, source, say=say), jar_sets)
        counts = dict(zip(jar_sets, map(len, fetched), strict=True))
    say("jars: " + ", ".join(f"{count} for {name}" for name, count in counts.items()) + ", all as in jars.lock")


def say(line: str) -> None:
    """Print a line of progress at once (unbuffered)."""
    print(f"set-up: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
