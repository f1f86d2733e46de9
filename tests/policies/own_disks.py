"""A cluster whose machines share no disk: what settings name reaches each of them.

Each simulated node has a home, a cache and a working directory of its own, and does not see the
folder of the driver's, which a file system in memory covers.
"""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import ray
from process_parts import wait_until
from ray.cluster_utils import Cluster
from small_model import TWO_RUNNERS
from word_problem_files import write_word_problems

from agentpeft.launch.train import main as train
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.settings.config import TinySettings

NUM_NODES = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The driver's folder: its home, cache and working directory."""
    folder = tmp_path_factory.mktemp("driver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("AGENTPEFT_CACHE", str(folder / "cache"))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.chdir(folder)
        Path("run.toml").write_text('experiment = "disks"\n')
        yield folder


@pytest.fixture(scope="module")
def nodes(home, tmp_path_factory):
    """The folders of three nodes beside a head without CPUs, so that all actors are on them."""
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, log_to_driver=False)
    folders, processes = [], []
    for number in range(NUM_NODES):  # one after the other: Ray looks for names that are not taken
        folders.append(tmp_path_factory.mktemp("node"))
        processes.append(start_node(cluster.address, folders[-1], home))
        assert wait_until(lambda count=number + 1: ray.cluster_resources().get("CPU") == count, 60)
    yield folders
    ray.shutdown()
    for process in processes:
        process.kill()
        process.wait()
    cluster.shutdown()


def start_node(address, folder, hidden):
    ray_command = Path(sys.executable).with_name("ray")
    covered = ("--dev-bind", "/", "/", "--tmpfs", str(hidden), "--chdir", str(folder))
    ended = ("--unshare-pid", "--proc", "/proc", "--die-with-parent")  # all of it with bwrap
    own = ("--setenv", "HOME", str(folder), "--setenv", "AGENTPEFT_CACHE", str(folder / "cache"))
    start = (str(ray_command), "start", f"--address={address}", "--num-cpus=1", "--block")
    return subprocess.Popen(["bwrap", *covered, *ended, *own, *start], stdout=subprocess.DEVNULL)


def run(*words):
    """Returns the summary of a training whose output is caught."""
    done = io.StringIO()
    with redirect_stdout(done):
        assert train([*words]) == 0
    return json.loads(done.getvalue().splitlines()[-1])


def weights_of(summary):
    return (Path(summary["adapter"]) / "adapter_model.safetensors").read_bytes()


def base_of(summary):
    config = json.loads((Path(summary["adapter"]) / "adapter_config.json").read_text())
    return config["base_model_name_or_path"]


def test_the_built_in_model_and_a_task_file_reach_every_machine(home, nodes, caplog):
    write_word_problems(home / "tasks.jsonl", 50)
    gsm8k = ("environment.id=AgentPEFT/GSM8K-v0", "environment.kwargs={data='tasks.jsonl'}")
    cpus = ("num_cpus_per_process=1",)
    common = [word for word in TWO_RUNNERS if not word.startswith("environment")]
    words = ("run.toml", *common, *cpus, *gsm8k, "training.num_iterations=2")
    with caplog.at_level("INFO"):
        spread = run(*words)
    assert "sends what is not on all machines" in caplog.text
    alone = run(*words, "env_runners.num_env_runners=0")
    assert weights_of(spread) == weights_of(alone)
    (made,) = (home / "cache").glob("tiny-*")
    assert base_of(spread) == base_of(alone) == str(made)
    for node in nodes:
        assert {path.name for path in node.glob("cache/*")} == {made.name, "brought"}
        (brought,) = node.glob("cache/brought/*/tasks.jsonl")
        assert brought.read_bytes() == (home / "tasks.jsonl").read_bytes()


@pytest.mark.long
def test_a_base_and_an_adapter_over_it_reach_every_machine_and_are_named_as_the_driver_does(
    home, nodes
):
    tiny = TinySettings(hidden_size=64, num_layers=2)
    base = build_tiny(tiny, ["1+2=3"])
    base.model.save_pretrained("base")
    base.tokenizer.save_pretrained("base")
    own = [word for word in TWO_RUNNERS if not word.startswith("tiny.")]
    words = ("run.toml", *own, "warm_start.num_steps=0", "model.name=base")
    first = run(*words, "training.num_iterations=1")
    assert base_of(first) == str(home / "base")
    adapter = first["adapter"]
    for start in (f"model.adapter={adapter}", f"model.name={adapter}"):
        spread = run(*words, start, "training.num_iterations=2")
        alone = run(*words, start, "training.num_iterations=2", "env_runners.num_env_runners=0")
        assert weights_of(spread) == weights_of(alone)
        assert base_of(spread) == str(home / "base")
    run_dir = str(Path(spread["adapter"]).parents[2])
    further = run("--resume", run_dir, "training.num_iterations=3")
    assert base_of(further) == str(home / "base")
