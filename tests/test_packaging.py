"""The wheel holds what the folders hold, and works in an environment with nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("envs", "policies", "launch", "apps")

PLAY = """
import sys, gymnasium
env = gymnasium.make("agentpeft.envs:AgentPEFT/Arithmetic-v0")
env.reset(seed=0)
for action in env.unwrapped.oracle_actions(env.unwrapped.task):
    info = env.step(action)[4]
assert info["is_success"], info
import agentpeft.envs, agentpeft.launch, agentpeft.apps
extras = {"torch", "ray", "mysql", "docker", "pytest", "pyarrow"}
assert not extras & set(sys.modules), extras & set(sys.modules)
print(agentpeft.envs.__file__)
"""
MAKE = "from gymnasium import make; make('agentpeft:AgentPEFT/DBBench-v0').close()"


def run(*command, cwd):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def run_checkout(code, cwd):
    """Runs code where the package is the checkout's, installed or not."""
    find = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    return run(sys.executable, "-I", "-W", "error", "-c", find + code, cwd=cwd)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the wheel and the sdist, built from a copy of the tree."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests")
    shutil.copytree(ROOT, copy, ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=out)
    return out


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory, dist):
    """The Python of a new environment that has the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *dist.glob("*.whl"), cwd=folder)
    return python


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium",
        "import gymnasium, agentpeft",
        "import agentpeft, gymnasium",
        "import agentpeft, importlib.util; importlib.util.find_spec('gymnasium')",
        "import agentpeft.envs",
    ],
)
def test_the_packages_name_alone_stands_before_an_id(imports, tmp_path):
    run_checkout(f"{imports}; {MAKE}", tmp_path)


def test_importing_the_package_imports_nothing_heavy_and_shows_public_names(tmp_path):
    code = "import agentpeft; assert not {'gymnasium', 'numpy'} & set(sys.modules); "
    code += "assert dir(agentpeft) == agentpeft.__all__; from agentpeft import *; "
    code += "print(AlgorithmConfig.__name__, TextEnv.__name__, envs.__name__)"
    assert run_checkout(code, tmp_path) == "AlgorithmConfig TextEnv agentpeft.envs"


def test_the_package_is_found_in_the_folder_that_holds_the_checkout(tmp_path):
    (tmp_path / "agentpeft").mkdir()  # as `git clone` calls it
    run(sys.executable, "-c", "from agentpeft import AlgorithmConfig, envs", cwd=tmp_path)


def test_the_version_of_a_checkout_is_that_of_the_wheel(dist, tmp_path):
    version = run_checkout("import agentpeft; print(agentpeft.__version__)", tmp_path)
    assert [path.name.split("-")[1] for path in dist.glob("*.whl")] == [version]


@pytest.mark.slow
def test_the_wheel_tells_its_version_and_makes_environments_by_its_name(empty_python, tmp_path):
    code = f"from importlib.metadata import version; import agentpeft, sys; {MAKE}"
    code += "; print(agentpeft.__version__, version('agentpeft'))"
    told, installed = run(empty_python, "-W", "error", "-c", code, cwd=tmp_path).split()
    assert told == installed


def room_files():
    yield from ("agentpeft/__init__.py", "agentpeft/py.typed")
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"agentpeft/{path.relative_to(ROOT).as_posix()}"


def test_the_wheel_has_exactly_the_files_of_the_rooms(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert sorted(n for n in names if ".dist-info/" not in n) == sorted(room_files())
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_has_the_sources_and_the_licence(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "agentpeft/envs/core/text_env.py"} <= names


@pytest.mark.slow
def test_the_wheel_plays_in_an_empty_environment(empty_python, tmp_path):
    location = run(empty_python, "-W", "error", "-c", PLAY, cwd=tmp_path)
    assert Path(location).is_relative_to(empty_python.parents[1])


@pytest.mark.slow
def test_a_package_of_the_same_name_beside_the_wheel_is_not_taken(empty_python, tmp_path):
    (installed,) = empty_python.parents[1].glob("lib/python3*/site-packages")
    (installed / "envs").mkdir()
    (installed / "envs" / "__init__.py").touch()
    run(empty_python, "-c", "from agentpeft.envs import SettingsError", cwd=tmp_path)


@pytest.mark.slow
def test_the_base_install_is_small(empty_python, tmp_path):
    listed = run(empty_python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).lower()
    names = {line.partition("==")[0] for line in listed.splitlines()}
    assert {"agentpeft", "gymnasium", "numpy", "sqlglot"} <= names
    assert not names & {"torch", "ray", "docker", "mysql-connector-python", "pytest", "mypy"}


def test_extras_hold_what_their_names_say():
    extras = SETTINGS["project"]["optional-dependencies"]
    clients = {"db", "mcp", "openai", "os", "remote", "serve"}
    others = {"docs", "hub", "quantize", "train", "tune", "vllm", "wandb", "all", "dev"}
    assert set(extras) == clients | others
    assert "vllm" not in "".join(extras["all"] + extras["dev"])
    assert "torch" not in "".join(SETTINGS["project"]["dependencies"] + extras["dev"])


ALL_EXTRAS = sorted(SETTINGS["project"]["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "extras",
    [ALL_EXTRAS, *([extra, "vllm"] for extra in ALL_EXTRAS if extra != "vllm")],
    ids=lambda extras: "all at once" if len(extras) > 2 else extras[0] + " and vllm",
)
def test_every_pair_of_extras_can_be_installed(dist, tmp_path, extras):
    """What is found for all at once does for every pair; those with vLLM's pins are asked singly.

    torch for CPUs, without which pip looks at gigabytes of CUDA's packages.
    """
    (wheel,) = dist.glob("*.whl")
    command = ["-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    wanted = [f"{wheel}[{','.join(extras)}]", "torch==2.13.0"]
    done = subprocess.run(
        [sys.executable, *command, "--report", tmp_path / "report.json", *wanted],
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert "vllm" in {each["metadata"]["name"] for each in report["install"]}


@pytest.mark.slow
@pytest.mark.parametrize("database", ["mysql://root@127.0.0.1:9", "docker"])
def test_a_database_without_its_extra_says_what_to_install(empty_python, tmp_path, database):
    code = (
        "import gymnasium as gym\ntry:\n"
        f"    gym.make('agentpeft.envs:AgentPEFT/DBBench-v0', database={database!r})\n"
        "except ValueError as error:\n    print(error)"
    )
    assert "pip install 'agentpeft[db]'" in run(empty_python, "-c", code, cwd=tmp_path)


def test_the_page_tells_every_extra_and_what_those_of_several_hold():
    extras = SETTINGS["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `\[(\w+)\]` \| (.*?) \|", page, re.M))
    assert set(told) == set(extras)
    for name in ("all", "dev"):
        (held,) = re.findall(r"^agentpeft\[(.*)\]$", "\n".join(extras[name]), re.M)
        assert set(re.findall(r"`\[(\w+)\]`", told[name])) == set(held.split(","))
