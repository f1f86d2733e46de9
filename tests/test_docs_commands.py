"""Every command of the README and of docs/ runs as a newcomer would run it, or is looked at.

Blocks without `needs:` run as they stand, each page's in a tree of its own in which the quickstart
has been run. What several pages have runs once. A tag says why a block does not run, and what is
done instead:

* cluster: they run, on a Ray head with token authentication;
* gpu: its `agentpeft train` runs with `--dry-run`;
* docker, hub, kubernetes, machines, vllm: their words are checked alone, the files that they name
  in test_examples.py, what vLLM makes of them in test_vllm_endpoint.py, and what the doctor says of
  a machine that lacks them, where a guide asks it;
* minutes: `make` says what it would do, scripts are parsed;
* network: it runs where packages can be had (this is the README's first one).

CI runs the README's and most others; pages whose blocks train for minutes are among the long tests.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from docs_blocks import BLOCKS, PAGES, ROOT, SHELL, without_repetitions
from known_commands import problem_of
from newcomer import QUICKSTART, RUN
from ray_cluster import ray_head

TAGS = {
    "",
    "cluster",
    "docker",
    "gpu",
    "hub",
    "kubernetes",
    "machines",
    "minutes",
    "network",
    "vllm",
}
LANGUAGES = {"", "python", "sh", "bash", "text", "sql", "toml"}
COMMAND = re.compile(r"^\s*(?:python3?|agentpeft|make|pip|ray|git|docker|vllm|\.ci/\w+) ", re.M)
INLINE = re.compile(r"`((?:python -m|python launch|agentpeft|make|ray|pip install|vllm) [^`]+)`")


LONG_PAGES = {
    ROOT / f"docs/training/{name}.md"
    for name in ("algorithms", "cluster", "evaluate", "index", "merge", "replay")
} | {ROOT / f"docs/{name}.md" for name in ("your_model", "your_reward", "your_tasks")}


def tagged(*tags):
    chosen = [block for block in SHELL if block.needs in tags and block.text != QUICKSTART]
    blocks = [
        pytest.param(block, marks=pytest.mark.long if block.page in LONG_PAGES else ())
        for block in without_repetitions(chosen)
    ]
    return pytest.mark.parametrize("block", blocks, ids=str)


@pytest.fixture(scope="module")
def trees(newcomer, tmp_path_factory):
    """Returns a page's own copy of the newcomer's tree."""
    made = {}

    def tree_of(page):
        if page not in made:
            made[page] = newcomer.copy(tmp_path_factory.mktemp(page.stem) / "tree")
        return made[page]

    return tree_of


def run(newcomer, script, changes=None):
    done = newcomer.run(script, changes)
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_block_is_of_a_known_language_and_tag():
    assert {block.language for block in BLOCKS} <= LANGUAGES
    assert {block.needs for block in SHELL} <= TAGS
    python = {block.needs for block in BLOCKS if block.language == "python"}
    tested = {"", "drivers", "endpoint", "nemo", "trl", "torchrl", "trainers"}
    assert python == tested  # the tests of these and test_readme run them
    assert not [str(b) for b in BLOCKS if b.language == "" and COMMAND.search(b.text)]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_the_words_of_every_command_are_known(block):
    problems = [problem for words in block.commands() if (problem := problem_of(words))]
    assert not problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_inside_of_sentences_are_known(page):
    found = INLINE.findall(page.read_text("utf-8"))
    assert not [problem for text in found if (problem := problem_of(shlex.split(text)))]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first block of a page makes a model and trains it before its own
@tagged("")
def test_a_block_runs_as_it_stands(block, trees):
    newcomer = trees(block.page)
    newcomer.add_late_episodes()
    run(newcomer, block.text)


@pytest.mark.slow
@tagged("gpu")
def test_what_needs_a_gpu_passes_its_dry_run(block, trees):
    train = re.compile(r"^(agentpeft train .*?) *(#.*)?$", re.M)
    # All but what this machine lacks is right
    lacks = "2> error || grep -Eq '^error: (gpu|model|packages): ' error"
    script = train.sub(rf"\1 --dry-run {lacks}", block.text)
    assert "--dry-run" in script and "num_gpus_per_learner" in run(trees(block.page), script)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "fault"),
    [
        ("docker", "FAULT environment: no docker daemon answers"),
        ("machines", "FAULT gpu: the config asks for "),
        ("machines", "FAULT model: Qwen/Qwen2.5-7B-Instruct is not in the cache"),
    ],
)
def test_the_doctor_of_a_guide_names_what_this_machine_lacks(needs, fault, trees):
    page = ROOT / "docs/troubleshooting.md"
    lines = {
        line
        for block in SHELL
        if (block.page, block.needs) == (page, needs)
        for line in block.text.splitlines()
        if line.startswith("agentpeft doctor ")
    }
    (line,) = lines
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = trees(page).run(f"{line} --no-ladder", nowhere)
    assert done.returncode == 1 and fault in done.stdout


@pytest.mark.slow
@tagged("minutes")
def test_what_takes_minutes_is_parsed(block, trees):
    for words in block.commands():
        if words[0] == "make":
            command = ["make", "-n", *words[1:]]
        elif (ROOT / words[0]).is_file():
            command = ["bash", "-n", *words]
        else:  # its words are checked above
            command = ["bash", "-n", "-c", shlex.join(words)]
        run(trees(block.page), shlex.join(command))


@pytest.fixture(scope="module")
def head(newcomer):
    """The environment of a Ray head that asks for the newcomer's token, with the package."""
    run(newcomer, "RAY_AUTH_MODE=token ray get-auth-token --generate")
    changes = {
        "RAY_AUTH_MODE": "token",
        "HOME": str(newcomer.home),
        "PYTHONPATH": str(newcomer.tree),
    }
    with ray_head(Path(sys.executable), changes) as env:
        yield {k: v for k, v in env.items() if k.startswith("RAY_")} | {"HOME": changes["HOME"]}


@pytest.mark.slow
@tagged("cluster")
def test_a_job_of_the_pages_trains_on_a_cluster(block, trees, head, tmp_path):
    outputs, address = str(tmp_path / "runs"), head["RAY_API_SERVER_ADDRESS"]
    # The fixture's head stands for the one that a block starts
    script = re.sub(r"^ray start .*\n", "", block.text, flags=re.M)
    script = script.replace("/mnt/runs", outputs)
    script = re.sub(r"http://(head|127\.0\.0\.1):8265", address, script)
    changes = dict(head)
    if "AGENTPEFT_OUTPUT_DIR" not in script:
        outputs = f"{changes['HOME']}/outputs"
    assert '{"before"' in run(trees(block.page), script, changes)
    assert list(Path(outputs).rglob("adapter_config.json"))


@pytest.mark.slow
def test_two_minutes_are_enough_for_an_empty_folder(tmp_path):
    (block,) = [block for block in SHELL if block.needs == "network"]
    script = block.text.replace("<this repository>", str(ROOT)).replace("<its folder>", ROOT.name)
    python = [each for each in BLOCKS if each.page == block.page and each.language == "python"]
    (tmp_path / "first.py").write_text(python[0].text, "utf-8")
    command = ["bash", "-euc", f"{script}\npython ../first.py"]
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("success 1.0\n")


@pytest.mark.slow
def test_the_quickstart_leaves_the_run_that_the_pages_speak_of(newcomer):
    assert QUICKSTART in [block.text for block in SHELL if block.page.name == "README.md"]
    assert (newcomer.tree / RUN / "checkpoints/checkpoint-000002/adapter").is_dir()
