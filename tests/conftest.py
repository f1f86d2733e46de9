"""Fixtures that all tests share."""

import gc
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from process_parts import leftovers

from agentpeft.envs import EnvFault, SettingsError
from agentpeft.envs.core.errors import user_folders
from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, SandboxLimits, make_sandbox

if TYPE_CHECKING:
    from newcomer import Newcomer
    from terminal import Terminal

    from agentpeft.policies.models.policy_base import PolicyBase

LONGEST = (
    "test_changing_machines",
    "test_docs_commands",
    "test_killed_parts",
    "test_readme",
    "test_vllm_all_weights",
    "test_vllm_engine",
    "test_vllm_endpoint",
    "test_vllm_in_flight",
    "test_vllm_killed_parts",
    "test_vllm_serving",
    "test_vllm_shared_runs",
    "test_vllm_start",
    "test_vllm_versions",
    "test_lifelong",
    "test_trainers",
    "test_stopping",
    "test_db_bench_oracle",
    "test_sharded_base",
)
"""Modules that take minutes. They begin first, or one would go on alone at the end."""
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # a loaded machine's node comes late


PLAYED_IN_DOCKER = 8
"""Of a table of more cases than `SMALL_TABLE`, docker plays every eighth outside of `test-long`.

Making a container takes most of such a test, and bubblewrap, or a server, plays all cases.
"""
SMALL_TABLE = 6


ALL_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.M)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Passes over modules of which the `-m` of a tier leaves nothing.

    Each worker collects for itself, and importing what every test needs takes 40 s.
    """
    wanted = config.getoption("markexpr")
    if collection_path.suffix != ".py" or wanted not in ("slow and not long", "not slow"):
        return None
    text = collection_path.read_text("utf-8")
    if wanted == "not slow":
        return True if ALL_SLOW.search(text) else None
    conftest = collection_path.with_name("conftest.py")  # parameters of its fixtures are marked
    if conftest.is_file() and conftest != Path(__file__):
        text += conftest.read_text("utf-8")
    return None if "slow" in text else True


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what of a table docker plays in `test-long` alone, and moves the longest to the front.

    The order is kept with `--no-loadscope-reorder`.
    """
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "docker" in (parameters.get("sandbox_kind"), parameters.get("database_spec")):
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for table in tables.values():
        for number, item in enumerate(table):
            if len(table) > SMALL_TABLE and number % PLAYED_IN_DOCKER:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(autouse=True)
def user_folders_of_a_test_alone() -> Iterator[None]:
    """Takes the folders of a test's commands off the path: none finds a module of another's."""
    before = set(user_folders)
    yield
    for folder in [folder for folder in user_folders if folder not in before]:
        user_folders.remove(folder)
        if folder in sys.path:
            sys.path.remove(folder)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The third-party task data beside the checkout; missing only outside CI."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"no task data at {path}")
        pytest.skip(f"no task data at {path}")
    return path


@pytest.fixture(scope="module", autouse=True)
def earlier_objects() -> None:
    """Sets the objects of earlier modules and of pytest apart, which are a million.

    Else collecting them may take a second, with which some test that counts seconds is charged.
    """
    gc.collect()
    gc.freeze()


_SCRIPTS = Path(__file__).parents[1] / ".ci"


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    """An administrator's URL of a real server: AGENTPEFT_MYSQL_URL, or a private MariaDB."""
    url = os.environ.get("AGENTPEFT_MYSQL_URL")
    if url:
        yield url
        return
    _require(shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin"), "no mariadbd")
    script = str(_SCRIPTS / "mysql_server.sh")
    name = f"tests-{os.getpid()}"
    started = subprocess.run([script, "start", name], stdout=subprocess.PIPE, check=True)
    yield started.stdout.decode().strip()
    subprocess.run([script, "stop", name], check=True)


@pytest.fixture(scope="session")
def docker_image() -> str:
    """A MySQL-like image in a running docker daemon: AGENTPEFT_DOCKER_IMAGE, made in CI."""
    image = os.environ.get("AGENTPEFT_DOCKER_IMAGE", "")
    _require(image, "no AGENTPEFT_DOCKER_IMAGE (make it with .ci/docker_image.sh)")
    return image


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """bubblewrap is installed, and may be used."""
    _require(shutil.which("bwrap"), "no bwrap (Debian: bubblewrap)")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium browser."""
    path = shutil.which("chromium") or ""
    _require(path, "no chromium")
    return path


@pytest.fixture(scope="session")
def trl_templates(trl_python: Path) -> dict[str, str]:
    """The chat templates of many models, by name, as TRL brings them."""
    folder = trl_python.parents[1] / "lib"
    found = {path.stem: path.read_text("utf-8") for path in folder.rglob("chat_templates/*.jinja")}
    return {name: text for name, text in found.items() if not name.endswith("_training")}


@pytest.fixture(scope="session")
def wandb() -> None:
    """The package of Weights & Biases."""
    _require(find_spec("wandb"), "no wandb (pip install wandb)")


@pytest.fixture(scope="session")
def datasets() -> None:
    """The package that reads data sets of the Hugging Face hub."""
    _require(find_spec("datasets"), "no datasets (pip install datasets)")


@pytest.fixture(scope="session")
def bitsandbytes() -> None:
    """The package that quantizes weights, which works on CPUs too."""
    _require(find_spec("bitsandbytes"), "no bitsandbytes (make test-four-bits)")


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A module's own AGENTPEFT_CACHE, which the processes that it starts inherit."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def small_base(tmp_path_factory: pytest.TempPathFactory) -> "PolicyBase":
    """The model of `word_runs`, which engines and adapters share."""
    from word_runs import ARITHMETIC, make_settings

    from agentpeft.policies.models.load import load_base

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_base(make_settings(ARITHMETIC))


@pytest.fixture(scope="module")
def nothing_left(cache_folder: Path) -> Iterator[None]:
    """No process and no shared memory of the module is there after its last test."""
    before = set(Path("/dev/shm").iterdir())
    yield
    assert leftovers(cache_folder, before) == []


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, cache_folder: Path) -> Iterator[None]:
    """A module's own Ray with two CPUs; `pytest.mark.cluster` takes other resources."""
    import ray  # here: the envs alone do not have it

    marker = request.node.get_closest_marker("cluster")
    resources = {"num_cpus": 2} | (marker.kwargs if marker else {})
    ray.init("local", include_dashboard=False, log_to_driver=False, **resources)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> "Newcomer":
    """A newcomer who has run the quickstart; others work on copies of the tree."""
    from newcomer import Newcomer  # here: it needs packages that the envs alone do not have

    folder = tmp_path_factory.mktemp("newcomer")
    made = Newcomer(folder / "tree", folder / "home")
    made.unpack()
    made.run_quickstart()
    return made


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; `merged` two folders above is its model."""
    from finished_run import make_finished_run  # here: it needs packages that the envs alone lack

    return make_finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def ray_parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folders of runs' own Rays lie; its path leaves room for those of sockets."""
    with TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder).resolve()


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., "Terminal"]]:
    """Starts commands, each on a terminal of its own, and ends them."""
    from terminal import Terminal

    opened: list[Terminal] = []

    def start(*words: object, **size: int) -> "Terminal":
        opened.append(Terminal(*map(str, words), **size))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture(scope="session")
def trl_python() -> Path:
    """The interpreter of the environment that has TRL and TorchRL."""
    path = Path(__file__).parents[1] / ".venv-trl" / "bin" / "python"
    _require(path.exists(), "no .venv-trl (make it with make venv-trl)")
    return path


@pytest.fixture(scope="session")
def drivers_python() -> Path:
    """The interpreter of the environment that has the other libraries of the drivers."""
    path = Path(__file__).parents[1] / ".venv-drivers" / "bin" / "python"
    _require(path.exists(), "no .venv-drivers (make it with make venv-drivers)")
    return path


@pytest.fixture(scope="session")
def trainers() -> Path:
    """The folder of what AgileRL, RLlib and GEM need beside what is installed here."""
    path = Path(__file__).parents[1] / ".venv-trainers"
    _require((path / "agilerl").exists(), "no .venv-trainers (make it with make venv-trainers)")
    return path


@pytest.fixture(scope="session")
def vllm() -> None:
    """vLLM is installed."""
    _require(find_spec("vllm"), "no vllm (make vllm)")


@pytest.fixture(scope="session")
def any_sandbox() -> None:
    """Some kind of sandbox works here, as the environment takes it by default."""
    _require_sandbox("auto")


@pytest.fixture(scope="session")
def docker_sandbox_works() -> None:
    """A docker daemon answers, and has an image for sandboxes."""
    _require_sandbox("docker")


@pytest.fixture(scope="session", params=["bubblewrap", "docker"])
def sandbox_kind(request: pytest.FixtureRequest) -> SandboxKind:
    """A kind of sandbox that works here, with an image (AGENTPEFT_OS_TAR, or made at need)."""
    kind: SandboxKind = request.param
    _require_sandbox(kind)
    return kind


@pytest.fixture(scope="session")
def control_groups() -> None:
    """Control groups can be made here, which an ordinary user mostly cannot."""
    groups = Cgroups(SandboxLimits())
    can_be_made = bool(groups.descriptors)
    groups.close()
    _require(can_be_made, "no control groups: needs root, or a delegation by systemd")


def _require_sandbox(kind: SandboxKind) -> None:
    sandbox = None
    try:
        sandbox = make_sandbox(kind)
        sandbox.reset()
    except (EnvFault, SettingsError) as error:
        _require(False, f"no {kind} sandbox: {error}")
    finally:
        if sandbox:
            sandbox.close()


@pytest.fixture(scope="session")
def mounting() -> None:
    """File systems can be mounted here."""
    can_mount = os.geteuid() == 0 and shutil.which("mount") is not None
    _require(can_mount, "no mounting: needs root")


@pytest.fixture(scope="session")
def ordinary_user() -> int:
    """The id of nobody, who may map ids here and has an image; the tests run as root."""
    ranges = Path("/etc/subuid")
    has_ids = ranges.exists() and "nobody:" in ranges.read_text()
    may_map = os.geteuid() == 0 and shutil.which("newuidmap") and has_ids
    _require(
        may_map, "no other user: needs root, uidmap, and nobody in /etc/subuid and /etc/subgid"
    )
    _require(
        os.environ.get("AGENTPEFT_OS_TAR"), "no AGENTPEFT_OS_TAR: only root could make the image"
    )
    return pwd.getpwnam("nobody").pw_uid


def _require(found: object, problem: str) -> None:
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
