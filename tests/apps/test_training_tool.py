"""The training tool: its schema, its four actions, and errors as JSON."""

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from agentpeft.apps.training_tool.training_tool import (
    TOOL_SCHEMA,
    evaluate_rewards,
    run,
    run_rewards,
    training_tool,
)
from agentpeft.policies.models.tiny_cache import load_tiny
from agentpeft.policies.settings.config import Settings

SMALL = {
    "environment.kwargs.num_digits": 1,
    "environment.kwargs.prompt": "compact",
    "tiny.hidden_size": 32,
    "tiny.num_layers": 1,
    "env_runners.max_new_tokens": 4,
    "training.group_size": 2,
}


OWN_SHAPE = {name: value for name, value in SMALL.items() if name.startswith("tiny.")}


def to_settings(environment):
    """Settings whose built-in model is that of a call with `OWN_SHAPE`."""
    tiny = {name.removeprefix("tiny."): value for name, value in OWN_SHAPE.items()}
    return Settings.model_validate({"environment": {"id": environment}, "tiny": tiny})


@pytest.fixture
def tool(tmp_path, monkeypatch, capsys):
    """Returns what the tool answers; nothing but that may reach standard output."""
    monkeypatch.chdir(tmp_path)

    def call(action, **arguments):
        Draft202012Validator(TOOL_SCHEMA["function"]["parameters"]).validate(
            {"action": action, **arguments}
        )
        answer = json.loads(training_tool(action=action, **arguments))
        assert capsys.readouterr().out == ""
        return answer

    return call


def test_the_schema_is_a_function_tool_with_all_arguments():
    parameters = TOOL_SCHEMA["function"]["parameters"]
    Draft202012Validator.check_schema(parameters)
    assert "required" not in parameters
    named = {"algorithm", "model", "dataset", "environment", "max_samples", "num_epochs", "format"}
    assert named | {"output_dir", "use_lora", "batch_size", "split"} <= set(
        parameters["properties"]
    )
    actions = parameters["properties"]["action"]["enum"]
    assert actions == ["train", "load_dataset", "create_reward", "evaluate"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_model_is_trained_evaluated_and_trained_further(cache, tool, tmp_path):
    common = {"split": "train", "max_samples": 8, "batch_size": 4, "output_dir": "out"}
    trained = tool("train", **common, settings=SMALL, num_epochs=2)
    assert trained["status"] == "ok" and {"before", "after", "seconds"} <= set(trained)
    assert (Path(trained["run"]) / "run.lock").is_file()
    assert Path(trained["adapter"]).is_absolute() and Path(trained["best"]["adapter"]).is_absolute()
    rows = (Path(trained["run"]) / "metrics.jsonl").read_text("utf-8").splitlines()
    assert json.loads(rows[-1])["train/step"] == 8 * 2 / 4
    few = {n: v for n, v in SMALL.items() if not n.startswith("tiny.")}
    found = tool("evaluate", **common | {"split": "test"}, model=trained["adapter"], settings=few)
    assert found["num_episodes"] == 8 and 0 <= found["success_rate"] <= 1
    assert found["success_rate"] == trained["after"]["success_rate"]
    again = tool("train", **common, model=trained["adapter"], settings=few)
    assert again["status"] == "ok" and again["adapter"] != trained["adapter"]


@pytest.mark.slow
def test_a_dict_or_its_json_trains_and_its_output_dir_is_the_next_stage_s_model(
    cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    common = {"dataset": "gsm8k", "max_samples": 2, "batch_size": 2}
    own = OWN_SHAPE | {"environment.kwargs.prompt": "compact"}
    sft = {"model_name": "tiny", "algorithm": "sft", "output_dir": "sft", "settings": own}
    first = json.loads(run(common | sft))
    assert first["status"] == "ok", first
    few = {"environment.kwargs.prompt": "compact", "env_runners.max_new_tokens": 4}
    grpo = {"model_name": "sft", "output_dir": "grpo", "settings": few}
    second = json.loads(run(json.dumps(common | grpo)))
    assert second["status"] == "ok", second
    config = tomllib.loads((Path(second["run"]) / "config.toml").read_text("utf-8"))
    assert config["model"]["name"] == first["adapter"]
    assert config["training"]["algorithm"] == "grpo"
    assert config["environment"]["id"] == "AgentPEFT/GSM8K-v0"
    assert config["environment"]["kwargs"]["split"] == "train"
    assert config["evaluation"]["env_kwargs"]["split"] == "test"
    found = json.loads(run(common | {"action": "evaluate", "model": "grpo"}))
    assert (found["status"], found["num_episodes"]) == ("ok", 2)
    assert found["success_rate"] == second["after"]["success_rate"]


def test_imitation_of_a_file_trains_all_weights(cache, tool, tmp_path):
    problem = {"question": "How many are 2 and 3?", "answer": "2 + 3 = 5\n#### 5"}
    (tmp_path / "train.jsonl").write_text(json.dumps(problem) + "\n", "utf-8")
    own = {n: v for n, v in SMALL.items() if n.startswith("tiny.")}
    own |= {"environment.kwargs.prompt": "compact"}
    data = {"environment": "AgentPEFT/GSM8K-v0", "dataset": "train.jsonl"}
    found = tool("train", **data, algorithm="sft", use_lora=False, max_samples=4, settings=own)
    assert found["status"] == "ok" and found["before"] == {"success_rate": None}
    assert (Path(found["adapter"]) / "model.safetensors").is_file()
    few = {n: v for n, v in own.items() if not n.startswith("environment")}
    found = tool("evaluate", **data, max_samples=2, settings=few)
    assert (found["status"], found["num_episodes"]) == ("ok", 1)  # of the one task that there is


def test_data_sets_are_conversations_or_prompts(tool):
    sft = tool("load_dataset", max_samples=5, environment="AgentPEFT/DBBench-v0")
    rows = [json.loads(line) for line in Path(sft["path"]).read_text("utf-8").splitlines()]
    assert len(rows) == sft["num_examples"] == 5 and rows[0] == sft["example"]
    assert [m["role"] for m in rows[0]["messages"]][:2] == ["user", "assistant"]
    assert rows[0]["messages"][-1]["role"] == "assistant"
    rl = tool("load_dataset", max_samples=3, format="rl", split="test")
    assert set(rl["example"]) == {"prompt", "task_id", "skills"}


@pytest.mark.slow
def test_rows_are_what_the_model_s_chat_template_makes_of_them(cache, tool):
    """Compared with `apply_chat_template` of the tokenizer itself."""
    common = {"max_samples": 3, "environment": "AgentPEFT/DBBench-v0", "settings": OWN_SHAPE}
    plain = [tool("load_dataset", **common, format=form)["path"] for form in ("sft", "rl")]
    texts = [
        tool("load_dataset", **common, format=form, apply_chat_template=True)["path"]
        for form in ("sft", "rl")
    ]
    (sft, rl), (sft_texts, rl_texts) = (
        [[json.loads(line) for line in Path(path).read_text("utf-8").splitlines()] for path in each]
        for each in (plain, texts)
    )
    tokenizer = load_tiny(to_settings(common["environment"])).tokenizer
    for row, text in zip(sft, sft_texts, strict=True):
        rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        assert text == {"text": rendered}
    for row, text in zip(rl, rl_texts, strict=True):
        asked = tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
        assert text == {**row, "prompt": asked}


def test_rewards_are_made_from_presets_and_fields(tool):
    assert tool("create_reward", reward="db")["reward"]["failure"] == -0.1
    made = tool("create_reward", reward={"preset": "exact_match", "turn_cost": 0.25})["reward"]
    scored = json.loads(
        evaluate_rewards([{"task_id": "addition:1+2:plain", "actions": ["3"]}], reward=made)
    )
    assert scored["rewards"] == [0.75]


def test_rewards_of_completions_have_statistics():
    answers = ["46", "45", "46", "what"]
    completions = [{"task_id": "addition:12+34:plain", "actions": [text]} for text in answers]
    found = json.loads(evaluate_rewards(completions))
    assert found["rewards"] == [1.0, 0.0, 1.0, 0.0]
    assert found["outcomes"] == ["success", "failure", "success", "invalid_action"]
    assert (found["mean"], found["std"], found["success_rate"]) == (0.5, 0.5, 0.5)


def test_a_completion_s_thoughts_are_no_part_of_its_action():
    answers = ["<think>Is it 45?</think>\n\n46", "<think>Is it 46?"]
    completions = [{"task_id": "addition:12+34:plain", "actions": [text]} for text in answers]
    found = json.loads(evaluate_rewards(completions))
    assert found["outcomes"] == ["success", "invalid_action"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "trian"}, "action: Input should be 'train', 'load_dataset'"),
        ({"action": "train", "modle": "tiny"}, "modle: Extra inputs are not permitted"),
        ({"action": "train", "max_samples": 0}, "max_samples: Input should be greater than 0"),
        ({"action": "train", "environment": "No/Env-v0"}, "unknown environment 'No/Env-v0'"),
        ({"action": "train", "settings": {"lora.rnk": 1}}, "did you mean 'lora.rank'?"),
        ({"action": "evaluate", "model": "./nowhere"}, "nowhere"),
        ({"action": "create_reward", "reward": "dp"}, "unknown reward preset 'dp'"),
        ({"model": "a", "model_name": "b"}, "model and model_name are one setting, got 'a' too"),
        (
            {"dataset": "gsm8k", "environment": "AgentPEFT/DBBench-v0"},
            "dataset 'gsm8k' is of AgentPEFT/GSM8K-v0: leave out environment",
        ),
    ],
)
def test_wrong_arguments_are_an_answer(arguments, message):
    answer = json.loads(training_tool(**arguments))
    assert answer["status"] == "error" and message in answer["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{", "the arguments are not JSON: "),
        ("[1]", "the arguments must be an object, got '[1]'"),
        ("{}", "completions: Field required"),
    ],
)
def test_arguments_that_are_no_object_are_an_answer(arguments, message):
    answer = json.loads(run_rewards(arguments))
    assert answer["status"] == "error" and message in answer["message"]


def test_an_output_dir_in_which_nothing_was_saved_is_no_model(tmp_path):
    (tmp_path / "training_tool" / "20260101-000000").mkdir(parents=True)
    answer = json.loads(run({"action": "evaluate", "model": str(tmp_path)}))
    assert "has saved anything" in answer["message"]


@pytest.mark.parametrize("completion", [{"task_id": "no such task", "actions": ["1"]}, {}])
def test_wrong_completions_are_an_answer(completion):
    assert json.loads(evaluate_rewards([completion]))["status"] == "error"
