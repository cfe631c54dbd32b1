"""Detects changes of the inputs of the Dagster definitions: code files, and the start of each table's time partitions.

Invariants:
    - This module only reads. It imports no module of the project; it finds a module's folder by the module's name.
    - Files in the home folder are ignored, because Holdfast writes there all the time. The only exceptions are the
      files with copies of deployment records (``infra.deploy.marks``).
"""

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.assets.times import snapshot_partitions
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import IMPORT_ROOT, Settings, load_settings
from holdfast.processors.lifecycle.deploy.marking import began

#: Suffixes of files whose content can change the Dagster definitions.
_ENDINGS = (".py", ".toml", ".yaml", ".yml", ".json", ".avsc", ".env")
#: Names of folders that hold installed packages or caches, not code of the project.
_PACKAGES = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})

#: Path of a file -> its modification time in nanoseconds, and its size in bytes.
Files = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Identifies all inputs of the Dagster definitions at one moment. Equal values give equal definitions.

    ``starts`` are the starts of the tables' first time partitions, in seconds since 1970.
    """

    files: Files
    starts: tuple[float, ...]

    def change_since(self, former: "LoadedCode") -> str | None:
        """A text with the first change since ``former``, for example ``/a/b.py changed``; None if nothing changed."""
        if self.files != former.files:
            changed = sorted(dict(self.files.items() ^ former.files.items()))
            more = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
            return f"{changed[0]}{more} changed"
        return None if self.starts == former.starts else "the first time partition changed"


def look(settings: Settings, modules: Iterable[str] = (), more: Iterable[Path] = ()) -> LoadedCode:
    """Read the present state of the code and the time partitions for these settings.

    ``modules`` are the modules that Dagster loads in addition to the processors' modules. ``more`` are
    additional files to watch.
    """
    files: Files = {}
    for root in dict.fromkeys((*_roots(settings, modules), *more)):
        for file in _files(root, settings.home):
            try:
                status = os.stat(file)
            except OSError:  # The file was deleted after the folder was listed.
                continue
            files[file] = status.st_mtime_ns, status.st_size
    return LoadedCode(files, _starts(settings))


def current_settings(known: Settings) -> Settings:
    """The settings that a new code server would read. If these are invalid now, returns the settings ``known``."""
    try:
        return load_settings()
    except HoldfastError:
        return known


def _roots(settings: Settings, modules: Iterable[str]) -> Iterator[Path]:
    """Yields the folders and files to watch: the project (or Holdfast itself), and packages outside the project.

    For a module that is a single file, the Python files in its folder are watched too, because it may import them.
    """
    holdfast, folder = IMPORT_ROOT / "holdfast", settings.workers_directory
    # Without a project, the working directory is not watched, because it may be any folder, such as the user's home.
    yield holdfast if settings.project is None else folder
    targets = (*settings.processors, *modules)
    for name in dict.fromkeys(target.partition(":")[0].partition(".")[0] for target in targets):
        place = None if (folder / name).exists() or (folder / f"{name}.py").exists() else _package(name)
        if place is not None and place != holdfast:
            yield place
            if place.suffix == ".py" and place.parent.name not in _PACKAGES:
                yield from place.parent.glob("*.py")


def _package(name: str) -> Path | None:
    """The folder or file of a Python package, found by its name; None if it is not on Python's path."""
    try:
        found = sys.modules.get(name) or importlib.util.find_spec(name)
        spec = getattr(found, "__spec__", found)
    except (ImportError, ValueError):
        return None
    places = list(getattr(spec, "submodule_search_locations", None) or ())
    origin = getattr(spec, "origin", None)
    return Path(places[0]) if places else Path(origin) if origin else None


def _files(root: Path, home: Path) -> Iterator[str]:
    if not root.is_dir():
        yield str(root)
        return
    for folder, folders, names in os.walk(root, followlinks=root == IMPORT_ROOT / "holdfast"):
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and each not in _PACKAGES and Path(folder, each) != home
        ]
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        for name in names:
            if name.endswith(_ENDINGS):
                yield os.path.join(folder, name)


def _starts(settings: Settings) -> tuple[float, ...]:
    """Sorted starts of the first time partition of each deployed processor's snapshot tables, seconds since 1970."""
    releases = settings.paths.all_releases
    names = sorted(each.name for each in releases.iterdir()) if releases.is_dir() else []
    moments = [began(settings.paths, [name]) for name in names] or [None]
    return tuple(sorted({snapshot_partitions(settings.snapshots, each).start.timestamp() for each in moments}))
