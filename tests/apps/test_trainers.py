"""Trainers that know no text or come by URL: `TokenEnv`, RLlib's new stack, AgileRL, GEM."""

import ast
import json
import sys

import gymnasium
import pytest
from docs_blocks import ROOT, texts_of
from env_server import env_server
from gymnasium.utils.env_checker import check_env
from needed_blocks import play_script, run_block
from oracle_server import oracle_calls
from transformers import AutoTokenizer

from agentpeft.apps.drivers.token_env import NO_TOKEN, TokenEnv
from agentpeft.envs import SettingsError
from agentpeft.policies.rollout.chat import ChatFormat

PAGE = "docs/training/drivers.md"
ARITHMETIC, GAME, NUM_TASKS = "AgentPEFT/Arithmetic-v0", "AgentPEFT/DBBench-v0", 3
SUM = {"options": {"task": "addition:3+4:plain"}}
GPU_LESS = "import agilerl\nagilerl.HAS_LLM_DEPENDENCIES = True  # what is left out is for GPUs\n"


@pytest.fixture
def merged(finished, tmp_path):
    """A tiny model's folder; a link in the present test's folder has the same name."""
    (tmp_path / "merged").symlink_to(finished.parents[1] / "merged")
    return tmp_path / "merged"


@pytest.fixture
def chat(merged):
    return ChatFormat(AutoTokenizer.from_pretrained(merged))


def make_token_env(merged, max_tokens=64, **kwargs):
    game = {"game": ARITHMETIC, "kwargs": {"num_digits": 1, "max_turns": 2, **kwargs}}
    return TokenEnv({**game, "model": merged, "max_tokens": max_tokens, "max_new_tokens": 4})


def say(env, ids):
    """Says tokens one after another; what each step returns but for the observation."""
    return [env.step(int(token))[1:] for token in ids]


def told(observation):
    return observation[observation != NO_TOKEN].tolist()


def test_a_token_env_is_one_of_gymnasiums(merged):
    check_env(make_token_env(merged), skip_render_check=True)


def test_the_last_token_of_a_turn_has_its_reward_and_the_answer(merged, chat):
    env = make_token_env(merged, invalid_ends=False)
    first, info = env.reset(**SUM)
    own = gymnasium.make(ARITHMETIC, num_digits=1, max_turns=2, invalid_ends=False)
    prompt, _ = own.reset(**SUM)
    assert (told(first), info) == (chat.begin(prompt).tolist(), {})
    wrong = chat.encode_action("8")
    *before, (observation, reward, *ends) = [env.step(int(token)) for token in wrong]
    assert [step[1:] for step in before] == [(0.0, False, False, {})] * (len(wrong) - 1)
    said, expected, *_ = own.step("8")
    assert (reward, ends) == (expected, [False, False, {}])
    assert told(observation) == [*told(first), *wrong, *chat.extend(wrong, said)]
    assert say(env, chat.encode_action("7"))[-1] == (own.step("7")[1], True, False, {})


def test_a_turn_without_a_stop_token_ends_at_its_limit(merged, chat):
    env = make_token_env(merged, max_turns=1)
    own = gymnasium.make(ARITHMETIC, num_digits=1, max_turns=1)
    env.reset(**SUM)
    own.reset(**SUM)
    (digit, _) = chat.encode_action("7")
    *before, last = say(env, [digit] * 4)
    assert before == [(0.0, False, False, {})] * 3
    assert last == (*own.step("7777")[1:4], {}) and last[1]


def test_a_conversation_without_room_is_truncated_and_a_prompt_refused(merged, chat):
    prompt, _ = gymnasium.make(ARITHMETIC, num_digits=1, max_turns=2).reset(**SUM)
    num_tokens = len(chat.begin(prompt))
    env = make_token_env(merged, max_tokens=num_tokens + 2)
    env.reset(**SUM)
    (digit, _) = chat.encode_action("7")
    assert say(env, [digit, digit]) == [(0.0, False, False, {}), (0.0, False, True, {})]
    with pytest.raises(SettingsError, match=f"a prompt of {num_tokens} tokens, got {num_tokens}"):
        make_token_env(merged, max_tokens=num_tokens).reset(**SUM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "library",
    [
        pytest.param("agilerl", marks=pytest.mark.long),
        pytest.param("rllib", marks=pytest.mark.long),
        pytest.param("swift", marks=pytest.mark.long),
        pytest.param("gem", marks=pytest.mark.long),
    ],
)
def test_the_oracle_earns_the_same_through_a_trainer(library, merged, tmp_path, trainers):
    script = "peers_at_play.py" if library == "gem" else "trainers_at_play.py"
    words = [library] if library == "gem" else [library, merged]
    with env_server(GAME, token=None) as server:
        words += [server.url] if library == "agilerl" else []
        returns, shown = play_script(script, words, sys.executable, tmp_path, trainers)
    assert returns == [1.0] * NUM_TASKS
    _, secrets = oracle_calls(GAME, NUM_TASKS)
    assert shown and not any(secret in shown for secret in secrets)


@pytest.mark.slow
@pytest.mark.long
def test_the_documentation_s_gem_plays(tmp_path, trainers):
    after = "print(prompt[:21])"
    said = run_block(PAGE, "import gem", sys.executable, tmp_path, after, path=trainers)
    assert said == "You work on a MySQL d"


def test_the_documentation_s_server_for_nemo_gym_is_python():
    (text,) = texts_of(ROOT / PAGE, "python", "nemo")  # which wants a later one than CI's
    assert "SuiteServer" in ast.dump(ast.parse(text))


@pytest.mark.slow
@pytest.mark.long
def test_rllib_trains(merged, tmp_path, trainers, ray_parent):
    after = """
import json
from transformers import AutoModelForCausalLM
first = AutoModelForCausalLM.from_pretrained("merged").state_dict()
change = sum((value - first[name]).abs().sum() for name, value in trained.state_dict().items())
learnt = result["learners"]["default_policy"]
print(json.dumps({
    "iteration": result["training_iteration"],
    "steps": result["num_env_steps_sampled_lifetime"],
    "return": result["env_runners"]["episode_return_mean"],
    "loss": float(learnt["policy_loss"]),
    "change": float(change),
}))
"""
    said = json.loads(run_block(PAGE, "PPOConfig", sys.executable, tmp_path, after, path=trainers))
    assert said["iteration"] == 2 and said["steps"] >= 256
    assert said["return"] < 0 and said["loss"] != 0 and said["change"] > 0.1


@pytest.mark.slow
@pytest.mark.long
def test_agilerl_trains_by_url(merged, tmp_path, trainers):
    after = """
import json
steps = {int(state["step"]) for state in agent.optimizer.optimizer.state.values()}
moved = [p.abs().sum().item() for n, p in agent.actor.named_parameters() if "lora_B.actor" in n]
print(json.dumps({"steps": sorted(steps), "moved": moved}))
"""
    settings = ["num_digits=1", "max_turns=3", "invalid_ends=false", "reward={length_cost=0.1}"]
    with env_server(ARITHMETIC, *settings, token=None) as server:
        before, word = f"{GPU_LESS}url = {server.url!r}", "train_llm_rollout"
        python, path = sys.executable, trainers
        shown = run_block(PAGE, word, python, tmp_path, after, before=before, path=path)
        assert server.metric("agentpeft_episodes_total") >= 16
    said = json.loads(shown)
    (num_steps,) = said["steps"]
    assert num_steps >= 2 and all(change > 0 for change in said["moved"])


@pytest.mark.slow
@pytest.mark.long
def test_swift_trains_on_what_the_model_said(merged, tmp_path, trainers):
    before = """
from swift.template import TemplateMeta, register_template
asked = ["<|user|>{{QUERY}}<|end|><|assistant|>"]
ends = {"chat_sep": ["<|end|>"], "suffix": ["<|end|>"]}
register_template(TemplateMeta("tiny", prefix=[], prompt=asked, **ends))
"""
    after = """
(log,) = Path("swift").rglob("logging.jsonl")
steps = [json.loads(line) for line in log.read_text().splitlines()]
print(json.dumps([step for step in steps if "grad_norm" in step]))
"""
    words = [PAGE, "rlhf_main", sys.executable, tmp_path, after]
    steps = json.loads(run_block(*words, before=before, path=trainers))
    assert len(steps) == 2 and all(float(step["grad_norm"]) > 0 for step in steps)
    assert all(float(step["reward"]) < 0 and float(step["num_turns"]) > 1 for step in steps)
    # Three turns of four tokens, and the end that the template writes behind each.
    assert all(float(step["completions/max_length"]) <= 3 * 5 for step in steps)
