"""Finds the project files that the import of a processor's definition loads, without executing that import.

    orders.py ── import rates ──► rates.py ── open(Path(__file__).parent / "rates.json") ──► rates.json
        └─────── from shop.totals import … ──► shop/: the whole package, with its data and linked folders

Invariants:
    - Holdfast's own code and installed packages are never copied. The release of a definition that is in an installed
      package has no folder.
    - A copy cannot contain some of the files that a definition reads. They are listed in ``left``, so that a plan can
      warn about them.
    - A file's name is its path below the folder that Python imports from. Symbolic links are not resolved.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath

from holdfast.processors.lifecycle.deploy.computed_names import IMPORTING, computed, package_of

#: Limits for the copy of a definition's code: maximum number of files, and maximum total size in bytes.
FILES_MAX, BYTES_MAX = 5_000, 64 << 20
_DIGEST_CHARACTERS = 8
_LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
_OWN = "holdfast"


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file of the code: its present path, and its path relative to the release folder that it is copied to."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Code:
    """The files that a definition loads; none if a release cannot copy these files (``why_not`` has the reason).

    ``digest`` is a hash of the files' names and contents. ``left`` has the paths of project files that the code reads
    but that are not copied. ``unseen`` has one text for each place in the code that loads a file or module whose name
    is known only at runtime. Such a file may be missing in the copy and in the digest.
    """

    target: str
    files: tuple[CodeFile, ...] = ()
    digest: str = ""
    why_not: str = ""
    left: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def copied(self) -> bool:
        """Whether a release gets a copy of these files; false if ``why_not`` has a reason."""
        return bool(self.files)


def code_of(target: str) -> Code:
    """The files that the processor definition ``target`` (``module:attribute``) loads when it is imported.

    These are its modules, all project modules that they import, and the data files that these modules name.
    """
    module = target.partition(":")[0]
    top = module.partition(".")[0]
    if top == _OWN:
        return Code(target, why_not=f"{module} is a part of Holdfast")
    places = _places(top)
    if not places:
        return Code(target, why_not=f"{top} has no file")
    if any(_is_installed(place) for place in places):
        return Code(target, why_not=f"{top} is an installed package")
    found = _Found()
    todo, seen = [top], {top, _OWN}
    while todo and not found.too_large:
        for name in found.add(_places(todo.pop())):
            if name not in seen:
                seen.add(name)
                todo += [name] if (places := _places(name)) and not any(map(_is_installed, places)) else []
    size = sum(path.stat().st_size for path in found.files.values())
    if found.too_large or size > BYTES_MAX:
        limits = f"at most {FILES_MAX:,} files and {BYTES_MAX:,} bytes are copied"
        what = f"{top} and what it imports have {len(found.files):,} files with {size:,} bytes"
        return Code(target, why_not=f"{what}; {limits}")
    files = tuple(CodeFile(name, found.files[name]) for name in sorted(found.files, key=PurePath))
    left = tuple(sorted(found.left - found.files.keys()))
    return Code(target, files, digest_of(files), left=left, unseen=tuple(found.unseen))


def digest_of(files: Iterable[CodeFile]) -> str:
    """A hash of the names and contents of files, in the given order; raises OSError."""
    digest = hashlib.sha256()
    for each in files:
        data = each.path.read_bytes()
        digest.update(f"{each.name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


@dataclass(slots=True)
class _Found:
    """The result so far of the search for files. ``files`` maps a path in the copied folder to the file to copy.

    ``left`` and ``unseen`` are the fields of ``Code`` with these names.
    """

    files: dict[str, Path] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)

    @property
    def too_large(self) -> bool:
        return len(self.files) > FILES_MAX

    def add(self, places: Iterable[Path]) -> set[str]:
        """Adds the file of a module, or all files in the folders of a package, to ``files``.

        Returns the names of the modules that the added files import.
        """
        imported: set[str] = set()
        for place in places:
            root = place.parent
            modules = list(_below(place)) if place.is_dir() else [place]
            for path in modules:
                self.files.setdefault(path.relative_to(root).as_posix(), path)
                if path.suffix == ".py":
                    imported |= self._read(path, root, alone=not place.is_dir())
        return imported

    def _read(self, path: Path, root: Path, *, alone: bool) -> set[str]:
        """Adds the data files that a Python file names in strings; returns the top-level modules that it imports.

        ``alone`` is true for a file that is in no package. The other files of its folder are then not copied with it.
        """
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            return set()  # No error here: the import of this file fails later, with an error that names the reason.
        nodes = list(ast.walk(tree))
        from_here = any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes)
        for name in _texts(nodes):
            if from_here:
                self._name(path.parent / name, root)
            # A path in a string is relative to the worker's working folder, which is the project folder.
            elif _is_data(root / name):
                self.left.add(name)
        place = path.relative_to(root).as_posix()
        self.unseen += [f"{place}:{each.line} {each.what}" for each in computed(nodes, paths=alone)]
        return set(_imports(nodes))

    def _name(self, path: Path, root: Path) -> None:
        for each in _below(path) if path.is_dir() and path != root else [path]:
            if _is_data(each):
                self.files.setdefault(each.relative_to(root).as_posix(), each)


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the top-level name of each module that a file imports, also in imports inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in IMPORTING and (top := package_of(node.args[0])):
                yield top


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields those string constants of a Python file that may be relative paths of files."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 200:
            parts = PurePath(node.value).parts
            if parts and not {"..", "/", "."} & set(parts) and "\0" not in node.value and "\n" not in node.value:
                yield node.value


def _is_data(path: Path) -> bool:
    """Whether a path is an existing data file, which is not a Python module and not hidden.

    Hidden files are left out, because they can contain secrets and settings.
    """
    try:
        return path.suffix not in ("", ".py", ".pyc") and not path.name.startswith(".") and path.is_file()
    except OSError:
        return False


def _below(place: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted.

    Links to folders are followed; each folder is read only once.
    """
    found: list[Path] = []
    entered: set[str] = set()
    for folder, names, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            names.clear()
            continue
        entered.add(real)
        names[:] = sorted(name for name in names if name not in _LEFT_OUT)
        found += [Path(folder, name) for name in files if not name.endswith((".pyc", ".pyo"))]
        if len(found) > FILES_MAX:
            break
    return sorted(path for path in found if path.is_file())


def _places(top: str) -> list[Path]:
    """The path of a module's file, or the paths of a package's folders; empty if there is no such module."""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return []
    if found is None or (found.origin in (None, "built-in", "frozen") and not found.submodule_search_locations):
        return []
    folders = list(found.submodule_search_locations or ())
    # Symbolic links are not resolved, because Python imports a linked module by the name of the link, not of its
    # target.
    return [Path(each).absolute() for each in (folders or [str(found.origin)]) if Path(each).exists()]


def _is_installed(place: Path) -> bool:
    real = place.resolve()
    return any(real.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")})
