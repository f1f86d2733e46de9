"""AgentPEFT/GSM8K-v0 as an environment."""

import itertools
import json
import operator
import re

import gymnasium
import numpy as np
import pytest

from agentpeft.envs import Outcome, SettingsError, Taskset, check_text_env

ENV_ID = "AgentPEFT/GSM8K-v0"
TASK = "trays:7"
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@pytest.mark.parametrize(
    ("prompt", "max_turns", "from_file"),
    list(itertools.product(["full", "compact"], [1, 4], [False, True])),
)
def test_every_combination_keeps_the_contract(shared_data, prompt, max_turns, from_file):
    data = str(shared_data / "gsm8k" / "train_300.jsonl") if from_file else None
    check_text_env(gymnasium.make(ENV_ID, data=data, prompt=prompt, max_turns=max_turns))


def test_the_oracle_solves_2000_generated_tasks():
    env = gymnasium.make(ENV_ID).unwrapped
    for task in Taskset.generate(env.task_source, 2000, seed=7):
        env.reset(options={"task": task})
        assert env.step(*env.oracle_actions(task))[1] == 1.0


def test_every_published_solution_succeeds_and_its_neighbour_fails(shared_data):
    env = gymnasium.make(ENV_ID, data=str(shared_data / "gsm8k" / "train_300.jsonl")).unwrapped
    assert len(env.task_source) == 300
    for task in env.task_source:
        wrong = f"#### {int(task.answer.replace(',', '')) + 1}"
        for action, outcome in ((task.solution, Outcome.SUCCESS), (wrong, Outcome.FAILURE)):
            env.reset(options={"task": task})
            assert env.step(action)[4]["outcome"] is outcome


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("#### 73", Outcome.SUCCESS),
        ("#### 73.0 cookies", Outcome.SUCCESS),
        (r"\boxed{73}", Outcome.SUCCESS),
        ("So the answer is 73.", Outcome.SUCCESS),
        ("#### 72", Outcome.FAILURE),
        ("#### 72 or 73", Outcome.FAILURE),
        ("#### 72\n#### 73", Outcome.FAILURE),
        ("73", Outcome.INVALID_ACTION),
        ("", Outcome.INVALID_ACTION),
    ],
)
def test_the_final_answer_is_graded(action, outcome):
    env = gymnasium.make(ENV_ID)
    env.reset(options={"task": TASK})  # 8 * 10 - 7 = 73
    _, reward, terminated, _, info = env.step(action)
    assert info["outcome"] is outcome and terminated
    assert reward == float(outcome is Outcome.SUCCESS)


def test_turns_without_an_answer_are_for_thinking():
    env = gymnasium.make(ENV_ID, max_turns=3)
    env.reset(options={"task": TASK})
    observation, _, _, _, info = env.step("8 * 10 = 80")
    assert observation == "No final answer yet; turns left: 2." and info["is_valid_action"]
    assert env.step("#### 73")[4]["outcome"] is Outcome.SUCCESS


def test_the_first_final_answer_is_final_and_the_last_turn_needs_one():
    env = gymnasium.make(ENV_ID, max_turns=2)
    env.reset(options={"task": TASK})
    assert env.step("#### 72")[4]["outcome"] is Outcome.FAILURE
    env.reset(options={"task": TASK})
    env.step("thinking")
    assert env.step("thinking")[4]["outcome"] is Outcome.TURN_LIMIT


def test_prompts_state_problem_syntax_and_turns():
    prompts = [
        gymnasium.make(ENV_ID, prompt=style, max_turns=max_turns).reset(options={"task": TASK})[0]
        for style, max_turns in (("full", 1), ("full", 3), ("compact", 1))
    ]
    assert all("8 trays of cookies" in prompt and "####" in prompt for prompt in prompts)
    assert "You have 1 turn." in prompts[0] and "You have 3 turns." in prompts[1]
    assert prompts[2].endswith("\n1 turn; end with #### and the number.")


def mutate(rng, text):
    if rng.random() < 0.3:
        return "".join(map(chr, rng.integers(0, 0x10FFFF, rng.integers(0, 30))))
    pieces = ["#### ", r"\boxed{", "answer is ", "}", "\ud800", "1/0", "e9", ",", "-", "\n", "٣"]
    for _ in range(rng.integers(1, 4)):
        cut = rng.integers(len(text) + 1)
        text = text[:cut] + str(rng.choice(pieces)) + text[cut + rng.integers(3) :]
    return text


@pytest.mark.slow
def test_random_and_mutated_actions_never_raise():
    env = gymnasium.make(ENV_ID, max_turns=2, invalid_ends=False)
    rng = np.random.default_rng(0)
    is_over = True
    for _ in range(20_000):
        if is_over:
            env.reset(options={"task": f"bus:{rng.integers(1000)}"})
        obs, _, is_over, _, info = env.step(mutate(rng, env.unwrapped.task.solution))
        assert obs in env.observation_space and (is_over or info["num_turns"] < 2)


def test_specs_survive_json():
    env = gymnasium.make(ENV_ID, prompt="compact", max_turns=2)
    spec = gymnasium.envs.registration.EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json())))
    assert gymnasium.make(spec).reset(seed=4)[0] == env.reset(seed=4)[0]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_oracle_adds_in_its_share_of_the_steps_and_calculates_rightly(share):
    env = gymnasium.make(ENV_ID, oracle_lapses=share).unwrapped
    num_steps = num_sums = 0
    for task in Taskset.generate(env.task_source, 500, seed=7):
        [text] = env.oracle_actions(task)
        *lines, end = text.split("\n")
        sums = [re.search(r"<<(-?\d+)([-+*/])(\d+)=(-?\d+)>>\4", line).groups() for line in lines]
        for left, symbol, right, value in sums:
            assert OPERATORS[symbol](int(left), int(right)) == int(value)
        assert end == f"#### {sums[-1][-1]}"
        gold = re.findall(r"<<\d+([-+*/])", task.solution)
        written = [own for (_, own, _, _), right in zip(sums, gold, strict=True) if right != "+"]
        num_steps += len(written)
        num_sums += written.count("+")
    assert num_sums / num_steps == pytest.approx(share, abs=0.05)


def test_lapses_are_of_the_templates_alone(shared_data):
    with pytest.raises(SettingsError, match="without data"):
        gymnasium.make(
            ENV_ID, data=str(shared_data / "gsm8k" / "train_300.jsonl"), oracle_lapses=0.5
        )
