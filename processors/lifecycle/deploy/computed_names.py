"""Finds the places in a Python file that load a module or a data file whose name is computed at runtime.

A deployment copies the files that the source code names. It can't know a computed name, so the copy may lack the file.
A plan lists these places as a warning.

    import_module(f"shop.rules.{name}")            the package shop is known, and copied whole: not listed
    import_module(settings["rules"])               listed
    Path(__file__).parent / f"{region}.json"       listed, if the file is in no package
    (Path(__file__).parent / "rules").glob("*")    the folder is known, and copied whole: not listed
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

#: Names of functions that import a module; the first argument is the module's name or path.
IMPORTING = frozenset({"import_module", "__import__", "run_module", "run_path"})
#: Methods of ``pathlib.Path`` that list the files of a folder.
_LISTING = frozenset({"glob", "rglob", "iterdir", "walk"})
#: Functions that list the modules or the files of a folder, given as the first argument.
_LISTING_FUNCTIONS = frozenset({"listdir", "scandir", "iter_modules", "walk_packages"})
_FILE = "__file__"


@dataclass(frozen=True, slots=True)
class Computed:
    """A place that loads a module or file by a computed name: the line, and a text about the code in that line."""

    line: int
    what: str


def computed(nodes: Iterable[ast.AST], *, paths: bool) -> list[Computed]:
    """The places of a file at which a name is computed at runtime, in the order of the lines.

    ``paths`` says whether computed paths of data files are listed, too. It is false for a file in a package, because a
    package is copied whole.
    """
    nodes = list(nodes)
    found = {_line(node): "imports a module whose name is computed" for node in nodes if _imports_computed(node)}
    if paths:
        here = _names_of_here(nodes)
        of_paths = (node for node in nodes if _joins_computed(node, here) or _lists(node, here))
        found |= {_line(node): "opens files whose names are computed" for node in of_paths}
    return [Computed(line, what) for line, what in sorted(found.items())]


def package_of(name: ast.expr) -> str:
    """The top-level package in the expression of a module's name.

    Empty if the name is relative, or if the expression does not begin with a constant package name.
    """
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value.partition(".")[0]
    start = _start(name)
    return start.partition(".")[0] if "." in start else ""


def _start(name: ast.expr) -> str:
    """The constant text at the start of a string expression; empty if the expression starts with a computed part."""
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value
    if isinstance(name, ast.JoinedStr) and name.values:
        return _start(name.values[0])
    if isinstance(name, ast.BinOp) and isinstance(name.op, ast.Add):
        return _start(name.left)
    return ""


def _imports_computed(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or _called(node) not in IMPORTING or not node.args:
        return False
    # a relative import stays in the same package, which is copied whole
    return not package_of(node.args[0]) and not _start(node.args[0]).startswith(".")


def _names_of_here(nodes: Iterable[ast.AST]) -> set[str]:
    """The variables that contain the file's own path, or a parent folder of it, for example ``Path(__file__).parent``.

    A variable with a constant subfolder, such as ``Path(__file__).parent / "rules"``, is left out, because such a
    folder is copied whole.
    """
    names = {_FILE}
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_here(node.value, names):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return names


def _is_here(value: ast.AST, names: set[str]) -> bool:
    """Whether an expression is the file's own path or a parent folder of it, without an added name."""
    if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(value)):
        return False
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(value))


def _joins_computed(node: ast.AST, here: set[str]) -> bool:
    """Whether an expression adds a part that is not a constant to the path of the file's own folder."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_here(node.left, here) and not isinstance(node.right, ast.Constant)
    if isinstance(node, ast.Call) and _called(node) in ("join", "joinpath", "with_name"):
        of = node.func.value if isinstance(node.func, ast.Attribute) else node
        begin, parts = (of, node.args) if _is_here(of, here) else (next(iter(node.args), of), node.args[1:])
        return _is_here(begin, here) and any(not isinstance(each, ast.Constant) for each in parts)
    return False


def _lists(node: ast.AST, here: set[str]) -> bool:
    """Whether a call lists the files of the file's own folder or of a parent folder."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _LISTING:
        return _is_here(node.func.value, here)
    if _called(node) not in _LISTING_FUNCTIONS:
        return False
    return any(_is_here(each, here) for each in node.args[:1])


def _called(node: ast.Call) -> str:
    """The name of the function or method in a call expression; empty if it has no name, as in ``f()()``."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))
