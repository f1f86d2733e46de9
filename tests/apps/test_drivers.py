"""Other people's trainers take real steps on our environments; the adapters, move by move."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
import torch
from needed_blocks import run_block
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentpeft.apps.drivers.tool_episode import OVER
from agentpeft.apps.drivers.trl_environment import TrlEnvironment, make_rows
from agentpeft.apps.drivers.trl_rollout import TrlRollout, episode_return
from agentpeft.envs import ENV_IDS, EnvFault, SettingsError, Taskset, UnknownTaskError

PAGE = "docs/training/drivers.md"
ENV_ID, TURNS = "AgentPEFT/Arithmetic-v0", {"num_digits": 1, "max_turns": 3, "invalid_ends": False}
LOGGED = (
    "import json\nsums = {n: sum(row.get(n, 0) for row in trainer.state.log_history) for n in %r}\n"
    "print(json.dumps({**sums, 'steps': trainer.state.global_step}))"
)


class FaultyEnv(gymnasium.Env):
    """A world that fails at every step."""

    def __init__(self, error):
        self.error = error

    def reset(self, *, seed=None, options=None):
        return "Go.", {}

    def step(self, action):
        raise self.error


@pytest.fixture
def merged(finished, tmp_path):
    """A tiny model's folder; a link in the present test's folder has the same name."""
    (tmp_path / "merged").symlink_to(finished.parents[1] / "merged")
    return tmp_path / "merged"


def play(model_folder, max_completion_length=64, num_tasks=4):
    """Returns what a rollout of two episodes for each task says, and the model."""
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    rollout = TrlRollout(ENV_ID, TURNS, tokenizer=tokenizer, max_new_tokens=4)
    trainer = SimpleNamespace(
        model=model, temperature=1.0, max_completion_length=max_completion_length
    )
    prompts = [row["prompt"] for row in make_rows(num_tasks) for _ in range(2)]
    torch.manual_seed(0)
    return rollout(prompts, trainer), model


def test_an_environment_is_reset_by_position_and_played_by_calls():
    first, second = (TrlEnvironment(ENV_ID, TURNS) for _ in range(2))
    prompts = [first.reset(**row) for row in make_rows(5)]
    assert prompts == [second.reset(**row) for row in make_rows(5)]
    assert len(set(prompts)) > 1
    assert first.submit(answer="hm") == "Invalid: submit the number alone."
    assert first.get_reward() == 0.0
    a, b = (int(n) for n in prompts[4].partition("=")[0].removeprefix("Compute ").split("+"))
    assert (first.submit(answer=str(a + b)), first.get_reward()) == ("Correct.", 1.0)
    assert (first.submit(answer="1"), first.get_reward()) == (OVER, 1.0)


def test_a_system_prompt_stands_before_the_message_that_is_filled():
    system = {"role": "system", "content": "Be good."}
    tasks = Taskset.generate(gymnasium.make(ENV_ID).unwrapped.task_source, 2, seed=0)
    for rows in (make_rows(2, "Be good."), make_rows(tasks, "Be good.")):
        assert [row["prompt"][0] for row in rows] == [system] * 2
        assert [row["prompt"][1]["role"] for row in rows] == ["user"] * 2


def test_an_environment_is_reset_by_seed_task_or_row():
    env = TrlEnvironment(ENV_ID, TURNS)
    assert env.reset(task_id="addition:3+4:plain").startswith("Compute 3+4=")
    assert env.reset(seed=5) == gymnasium.make(ENV_ID, prompt="tools", **TURNS).reset(seed=5)[0]
    by_position = [env.reset(**row) for row in make_rows(3)]
    assert [env.reset(row) for row in make_rows(3)] == by_position
    assert env.reset(position=1, task_id=None, fields=None) == by_position[1]
    plain = TrlEnvironment(ENV_ID, TURNS)
    assert [plain.reset(prompt=[], level="easy") for _ in range(3)] == by_position
    with pytest.raises(SettingsError, match="a position or a seed, got 1 and 2"):
        env.reset(position=1, seed=2)
    with pytest.raises(UnknownTaskError):
        env.reset(task_id="addition:3:plain")
    assert (env.submit(answer="7"), env.get_reward()) == (OVER, 0.0)
    assert env.reset(task_id="addition:3+4:plain") and env.submit(answer="7") == "Correct."


@pytest.mark.parametrize("env_id", [one for one in ENV_IDS if "OS" not in one])
def test_an_environment_plays_the_tasks_of_rows(env_id):
    own = gymnasium.make(env_id, prompt="tools").unwrapped
    tasks = list(Taskset.generate(own.task_source, 5, seed=3))
    rows = pa.Table.from_pylist(make_rows(tasks)).to_pylist()
    env = TrlEnvironment(env_id)
    for task, row in zip(tasks, rows, strict=True):
        assert env.reset(**row) == own.reset(options={"task": task})[0]
        for action in own.oracle_actions(task):
            call = own.get_tools().find_call(action)
            getattr(env, call.name)(**call.arguments)
        assert env.get_reward() == 1.0


def test_an_episode_without_a_call_is_an_invalid_action():
    env = TrlEnvironment("AgentPEFT/DBBench-v0")
    env.reset(**make_rows(1)[0])
    assert env.get_reward() == pytest.approx(-0.1)


@pytest.mark.parametrize("kind", [EnvFault, ValueError])
def test_what_an_environment_raises_is_no_reward(kind):
    error = kind("the database is gone")
    gymnasium.register("Faulty-v0", FaultyEnv, kwargs={"error": error})
    env = TrlEnvironment("Faulty-v0")
    env.reset(position=0)
    with pytest.raises(kind):
        env.act(action="x")
    with pytest.raises(kind, match="database is gone"):
        env.get_reward()
    gymnasium.registry.pop("Faulty-v0")


def test_a_rollout_has_the_log_probabilities_with_which_it_sampled(merged):
    played, model = play(merged)
    for prompt, ids, logprobs, mask in zip(
        *(played[n] for n in ("prompt_ids", "completion_ids", "logprobs", "env_mask")), strict=True
    ):
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(ids)), ids] * torch.tensor(mask)
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_rollout_s_mask_is_0_on_what_the_environment_says(merged):
    played, _ = play(merged)
    tokenizer = AutoTokenizer.from_pretrained(merged)
    pairs = zip(played["completion_ids"], played["env_mask"], strict=True)
    said = [tokenizer.decode(np.array(ids)[np.array(mask) == 0]) for ids, mask in pairs]
    assert any("Invalid: reply" in text or "Wrong. Try again." in text for text in said)
    assert all(mask[0] == mask[-1] == 1 for mask in played["env_mask"])
    assert played["prompt_ids"][0] == played["prompt_ids"][1] != played["prompt_ids"][2]
    assert episode_return(**played) == played["episode_return"]


def test_a_rollout_ends_where_the_next_turn_has_no_room(merged):
    played, _ = play(merged, max_completion_length=8)
    assert all(all(mask) and len(mask) <= 4 for mask in played["env_mask"])


@pytest.mark.slow
def test_a_data_set_holds_tasks_of_every_kind(tmp_path, trl_python):
    after = "print(dataset.column_names, {f.dtype for f in dataset.features.values()})"
    shown = run_block(PAGE, "from_rows", trl_python, tmp_path, after)
    assert shown == "['task_kind', 'task_id', 'instruction', 'fields'] {'string'}"


@pytest.mark.slow
def test_torchrl_plays_unmodified(merged, tmp_path, trl_python):
    after = (
        "from torchrl.envs.utils import check_env_specs\ncheck_env_specs(env)\n"
        "print(step, bool(torch.isfinite(loss)))"
    )
    assert run_block(PAGE, "GymEnv", trl_python, tmp_path, after) == "1 True"


@pytest.mark.slow
def test_trl_trains_on_whole_episodes(merged, tmp_path, trl_python):
    after = LOGGED % ["grad_norm", "reward"]
    sums = json.loads(run_block(PAGE, "rollout_func", trl_python, tmp_path, after))
    assert sums["steps"] == 2 and sums["grad_norm"] > 0 and sums["reward"] < 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # it makes a model first: 20 s where no one else is at work
def test_trl_trains_by_tool_calls(tmp_path, trl_python):
    made = Path(__file__).with_name("tool_model.py")
    subprocess.run([trl_python, made], cwd=tmp_path, check=True, capture_output=True)
    after = LOGGED % ["tools/call_frequency", "reward"]
    sums = json.loads(run_block(PAGE, "environment_factory", trl_python, tmp_path, after))
    assert sums["steps"] == 2
    assert sums["tools/call_frequency"] > 0.5 and sums["reward"] > 0.3
