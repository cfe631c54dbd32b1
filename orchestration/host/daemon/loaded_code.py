"""What a code server has loaded: files of the project and of its processors, and where time partitions begin.

Invariants:
    - Reads only. Nothing is imported: a module's folder is found by its name.
    - The home folder is not read, except the marks of deployments: Holdfast writes there all the time.
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

#: Endings of files that definitions are made from.
_ENDINGS = (".py", ".toml", ".yaml", ".yml", ".json", ".avsc", ".env")
#: Folders that hold packages, and no code of the project.
_PACKAGES = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})

#: Path -> modification time in nanoseconds and size in bytes.
Files = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """What definitions are made from, at one moment; equal values load equal definitions."""

    files: Files
    starts: tuple[float, ...]

    def change_since(self, former: "LoadedCode") -> str | None:
        """What changed since a former look, as the end of a log line; None when nothing did."""
        if self.files != former.files:
            changed = sorted(dict(self.files.items() ^ former.files.items()))
            more = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
            return f"{changed[0]}{more} changed"
        return None if self.starts == former.starts else "the first time partition changed"


def look(settings: Settings, modules: Iterable[str] = (), more: Iterable[Path] = ()) -> LoadedCode:
    """The code and the time partitions of these settings now.

    ``modules`` are those that Dagster loads beside the processors' ones, and ``more`` are further files to watch.
    """
    files: Files = {}
    for root in dict.fromkeys((*_roots(settings, modules), *more)):
        for file in _files(root, settings.home):
            try:
                status = os.stat(file)
            except OSError:  # deleted since it was listed
                continue
            files[file] = status.st_mtime_ns, status.st_size
    return LoadedCode(files, _starts(settings))


def current_settings(known: Settings) -> Settings:
    """The settings as a code server would read them now; the known ones when they are not valid at present."""
    try:
        return load_settings()
    except HoldfastError:
        return known


def _roots(settings: Settings, modules: Iterable[str]) -> Iterator[Path]:
    """The project, or else Holdfast itself; and the packages of modules that are elsewhere.

    Of a module that is a single file, the modules beside it, too: it may import them.
    """
    holdfast, folder = IMPORT_ROOT / "holdfast", settings.workers_directory
    # an installed Holdfast without a project runs in any folder, as the user's home
    yield holdfast if settings.project is None else folder
    targets = (*settings.processors, *modules)
    for name in dict.fromkeys(target.partition(":")[0].partition(".")[0] for target in targets):
        place = None if (folder / name).exists() or (folder / f"{name}.py").exists() else _package(name)
        if place is not None and place != holdfast:
            yield place
            if place.suffix == ".py" and place.parent.name not in _PACKAGES:
                yield from place.parent.glob("*.py")


def _package(name: str) -> Path | None:
    """The folder or the file of a package on Python's path; None when there is none."""
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
    """Where the time partitions of snapshots begin, for each processor that was deployed (``assets.factory``)."""
    releases = settings.paths.all_releases
    names = sorted(each.name for each in releases.iterdir()) if releases.is_dir() else []
    moments = [began(settings.paths, [name]) for name in names] or [None]
    return tuple(sorted({snapshot_partitions(settings.snapshots, each).start.timestamp() for each in moments}))
