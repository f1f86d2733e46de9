"""The conventions of CONTRIBUTING.md that a machine can check."""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("envs", "policies", "launch", "apps")
"""The three rooms, and the apps that are built on them."""
MAY_IMPORT = {
    "envs": {"envs"},
    "policies": {"envs", "policies"},
    "launch": {"envs", "policies", "launch"},  # no room imports an app
    "apps": set(ROOMS),
}
DOORS = {"mysql": 1, "docker": 1, "subprocess": 1, "vllm": 1, "ray": 3, "peft": 4}
"""In how many modules of a room a heavyweight may be imported; peft's are `models/lora/`."""
MACHINE_PATHS = re.compile(r"/(?:work|root|Users)/|/home/\w|\b(?:extra-)?index-url\b|/simple/?\s")
PYTORCH_CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked(*patterns: str) -> list[Path]:
    """Returns the repository's files, new ones that are not ignored too."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in sorted(set(names.splitlines())) if (path := ROOT / name).is_file()]


PYTHON = tracked("*.py")
ROOM_FILES = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ROOMS]
SCRIPTS = [path for path in ROOM_FILES if path.parent == ROOT / "launch" and path.stem[:2] != "__"]
SCRIPTS.remove(ROOT / "launch" / "cli.py")
"""What may be run by its path; `cli` is the command."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, Function))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(path: Path, node: ast.expr | ast.stmt | ast.ExceptHandler | None = None) -> str:
    """Returns where something is, as an editor opens it."""
    return f"{path.relative_to(ROOT)}" + (f":{node.lineno}" if node else "")


def is_public(node: ast.AST) -> bool:
    """Returns whether a definition is for others; overloads leave their docstring to the last."""
    if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
        return False
    return "overload" not in map(ast.unparse, node.decorator_list)


def test_modules_are_named_by_what_they_hold():
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert not [named(path) for path in PYTHON if path.stem in vague]


def test_a_room_imports_only_what_it_may():
    heavy = {"torch", "ray", "transformers", "peft", "vllm"}
    wrong = []
    for path in ROOM_FILES:
        room = path.relative_to(ROOT).parts[0]
        for name in imports(path):
            words = name.split(".")
            is_above = words[0] == "agentpeft" and not {*words[1:2]} <= MAY_IMPORT[room]
            if is_above or (room == "envs" and words[0] in heavy):
                wrong.append(f"{named(path)} imports {name}")
    assert not wrong


def test_apps_import_public_names_alone_and_one_another_without_circles():
    others: dict[str, set[str]] = {}
    for path in ROOM_FILES:
        room, app = path.relative_to(ROOT).parts[:2]
        for name in imports(path) if room == "apps" else ():
            words = name.split(".")
            if words[0] == "agentpeft" and words[1:3] != ["apps", app]:
                assert not any(word.startswith("_") for word in words), f"{path} imports {name}"
                if words[1] == "apps":
                    others.setdefault(app, set()).add(words[2])
    TopologicalSorter(others).prepare()  # raises CycleError


def test_the_mysql_dialect_is_a_closed_box():
    folder = "envs/db_bench/backends/sqlite/mysql"
    dotted = "agentpeft." + folder.replace("/", ".")
    for path in tracked(f"{folder}/*.py"):
        for name in imports(path):
            assert not name.startswith("agentpeft.") or name.startswith(f"{dotted}."), name
            assert not name.startswith("sqlglot"), name  # it reads more than MySQL
            if path.parent.name in ("parse", "runtime"):  # compile stands on both
                layer = name.removeprefix(f"{dotted}.").partition(".")[0]
                assert layer not in {"parse", "compile", "runtime"} - {path.parent.name}, name


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("package", DOORS)
def test_a_heavyweight_has_one_door(room, package):
    doors = [
        path.name
        for path in ROOM_FILES
        if path.relative_to(ROOT).parts[0] == room
        and any(name.split(".")[0] == package for name in imports(path))
    ]
    assert len(doors) <= DOORS[package], doors


def test_a_benchmark_looks_where_its_imports_are():
    """A benchmark is run by its path, so a part of the tests that moves is lost to it."""
    parts = {path.stem: path for path in tracked("tests/*.py")}
    lost = []
    for path in tracked("benchmarks/*.py"):
        source = path.read_text("utf-8")
        looks = {path.parent} | {
            ROOT.joinpath(*re.findall(r'"(\w+)"', folders))
            for folders in re.findall(r'(?:parents\[1\]|ROOT)((?: / "\w+")+)', source)
        }
        lost += [
            f"{path.name} imports {name}"
            for name in {name.split(".")[0] for name in imports(path)}
            if name in parts and not any((folder / f"{name}.py").is_file() for folder in looks)
        ]
    assert not lost


def test_nothing_is_evaluated_or_duck_typed_and_only_scripts_print():
    calls = []
    for path in PYTHON:
        may_print = path.relative_to(ROOT).parts[0] in {"launch", "apps", "benchmarks", "examples"}
        banned = {"eval", "exec", "hasattr"} | (set() if may_print else {"print"})
        calls += [
            f"{named(path, node)} calls {node.func.id}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in banned
        ]
    assert not calls


def test_no_except_is_broad_unless_it_raises_again():
    broad = []
    for path in ROOM_FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and ast.unparse(node.body[-1]) != "raise":
                caught = ast.unparse(node.type) if node.type else "everything"
                if re.search(r"\b(Exception|BaseException|everything)\b", caught):
                    broad.append(f"{named(path, node)} catches {caught}")
    assert not broad


def test_no_two_public_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in ROOM_FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_folder_holds_few_enough_modules_to_be_one_concept():
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in ROOM_FILES)
    assert not {folder: size for folder, size in sizes.items() if size > 14}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_takes_its_folder_off_the_path_before_others_are_imported(path):
    first = next(
        node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert ast.unparse(first) == "import agentpeft.launch"


def test_nothing_is_left_to_do():
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert not [named(path) for path in ROOM_FILES if unfinished.search(path.read_text("utf-8"))]


def test_public_things_have_docstrings_and_all_functions_annotations():
    lacking = []
    for path in ROOM_FILES:
        public: list[ast.AST] = [node for node in tree_of(path).body if is_public(node)]
        public += [n for c in public if isinstance(c, ast.ClassDef) for n in c.body if is_public(n)]
        lacking += [
            f"{named(path)}: {getattr(node, 'name', 'it')} has no docstring"
            for node in (tree_of(path), *public)
            if not ast.get_docstring(node)
        ]
        lacking += [
            f"{named(path, node)}: {node.name} has no return annotation"
            for node in functions(path)
            if not node.returns
        ]
    assert not lacking


def test_tests_mock_nothing_and_skip_only_through_fixtures():
    skips = {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.importorskip"}
    wrong = []
    for path in tracked("tests/*.py"):
        wrong += [named(path) for name in imports(path) if name.startswith("unittest.mock")]
        for node in ast.walk(tree_of(path)) if path.name != "conftest.py" else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node) in skips:
                wrong.append(named(path, node))
    assert not wrong


def test_no_file_names_a_machine_or_an_index():
    wrong = []
    for path in tracked():
        if path != Path(__file__) and path.suffix not in {".jsonl", ".parquet", ".png"}:
            text = path.read_text(encoding="utf-8").replace(PYTORCH_CPU_INDEX, "")
            wrong += [f"{named(path)}: {found}" for found in MACHINE_PATHS.findall(text)]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_tools_that_only_read_the_tree_find_the_rooms(room):
    assert (ROOT / "agentpeft" / room).readlink() == Path("..", room)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"])
def test_the_repository_explains_itself(name):
    assert len((ROOT / name).read_text(encoding="utf-8")) > 300


def test_the_reading_list_of_the_training_service_names_files_once() -> None:
    page = (ROOT / "docs" / "training" / "how_it_works.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(set(listed)) == len(listed) == 14


def test_make_lets_python_keep_what_it_compiles() -> None:
    # packages are installed without being compiled: each process would do all of it anew
    command = ["make", "--eval=shown: ; @env", "shown"]
    told = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    shown = subprocess.run(command, cwd=ROOT, env=told, check=True, capture_output=True, text=True)
    assert "PATH=" in shown.stdout and "DONTWRITEBYTECODE" not in shown.stdout
