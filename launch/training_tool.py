"""Training as a function tool of an agent: one callable, its JSON schema, a JSON string back.

`training_tool(**arguments)` takes what `TOOL_SCHEMA` says (OpenAI's form, which all tool-calling
agents take). It never raises for a wrong argument: `status` is then "error", with a message.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.types import PositiveInt

from agentpeft.envs import Outcome, RewardConfig, SettingsError, Task, Taskset, TextEnv
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.command_line import FAILURES, WRONG, say
from agentpeft.launch.run.run_folder import Start, lock_run, log_to, make_run_dir, output_base
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.rollout.environment_calls import make_text_env
from agentpeft.policies.rollout.play import play_actions, read_any_reward
from agentpeft.policies.rollout.thoughts import find_action
from agentpeft.policies.settings.config import (
    AlgorithmName,
    EnvironmentSettings,
    Settings,
    with_overrides,
)

Reward: TypeAlias = str | dict[str, Any]
Json: TypeAlias = dict[str, Any]
_NUM_EVALUATED = 100


class ToolRequest(BaseModel):
    """Trains language models by LoRA on text environments, evaluates them, and shows their data."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    action: Literal["train", "load_dataset", "create_reward", "evaluate"]
    algorithm: AlgorithmName = "grpo"
    model: str = Field("tiny", description="built-in 'tiny', hub id, folder, or adapter directory")
    environment: str = Field("AgentPEFT/Arithmetic-v0", description="a registered text environment")
    dataset: str | None = Field(None, description="its task file or folder, or 'hub'")
    split: Literal["train", "test"] | None = None
    format: Literal["sft", "rl"] = Field("sft", description="of load_dataset's rows")
    reward: Reward | None = Field(
        None, description="preset (exact_match, db, os) or fields, as create_reward returns them"
    )
    max_samples: PositiveInt = 100
    num_epochs: PositiveInt = 1
    batch_size: PositiveInt = Field(8, description="tasks per update")
    output_dir: str = "outputs"
    use_lora: bool = True
    settings: dict[str, Any] = Field({}, description="more settings, by dotted names")

    def environment_kwargs(self) -> Json:
        """Returns the environment's keyword arguments."""
        own = {"data": self.dataset, "split": self.split, "reward": self.reward}
        return {name: value for name, value in own.items() if value is not None}


TOOL_SCHEMA: Json = {
    "type": "function",
    "function": {
        "name": "training_tool",
        "description": ToolRequest.__doc__,
        "parameters": ToolRequest.model_json_schema(),
    },
}


def training_tool(**arguments: Any) -> str:
    """Does what `ToolRequest` says, in this process; returns JSON with `status` "ok" or "error".

    Standard output is left to the caller: progress goes to standard error.
    """
    return _answer(lambda: _do(ToolRequest(**arguments)))


def evaluate_rewards(
    completions: Sequence[Mapping[str, Any]],
    environment: str = "AgentPEFT/Arithmetic-v0",
    reward: Reward | None = None,
    **environment_kwargs: Any,
) -> str:
    """Returns JSON with the reward of each completion, and their statistics.

    A completion is `{"task_id": …, "actions": [text, …]}`, as `load_dataset` names tasks. Of a text
    with thoughts, the action is what follows the last `</think>`.
    """
    own = environment_kwargs | ({} if reward is None else {"reward": reward})
    return _answer(lambda: _score(EnvironmentSettings(id=environment, kwargs=own), completions))


def _answer(do: Callable[[], Json]) -> str:
    try:
        with redirect_stdout(sys.stderr):
            result = {"status": "ok", **do()}
    except ValidationError as error:
        first = error.errors()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r:.60}"
        result = {"status": "error", "message": text}
    except (*WRONG, *FAILURES, OSError) as error:
        result = {"status": "error", "message": say(error)}
    return json.dumps(result, ensure_ascii=False)


def _do(request: ToolRequest) -> Json:
    if request.action == "create_reward":
        reward = asdict(RewardConfig.of(request.reward or "exact_match"))
        return {"reward": {name: value for name, value in reward.items() if value is not None}}
    if request.action == "load_dataset":
        return _load_dataset(request)
    settings = with_task_files(_to_settings(request))
    return _train(settings) if request.action == "train" else _evaluate(request, settings)


def _to_settings(request: ToolRequest) -> Settings:
    """Returns a run's settings; an adapter directory brings its shape. Raises: SettingsError."""
    own, is_training = request.environment_kwargs(), request.action == "train"
    held_out = {"split": "test"} if request.split == "train" else {}
    num_tasks = min(request.max_samples, _NUM_EVALUATED)
    if is_training and request.dataset is not None and not held_out:
        num_tasks = 0  # it would be the training file
    num_updates = math.ceil(request.max_samples * request.num_epochs / request.batch_size)
    training = {"num_iterations": num_updates, "num_groups": request.batch_size}
    values: Json = {
        "experiment": "training_tool",
        "environment": {"id": request.environment, "kwargs": own if is_training else {}},
        "model": {"name": request.model},
        "lora": {"use_lora": request.use_lora, **_shape(request)},
        "env_runners": {"num_env_runners": 0},
        "training": {"algorithm": request.algorithm, **training},
        "evaluation": {"num_tasks": num_tasks, "env_kwargs": held_out if is_training else own},
        "output": {"dir": request.output_dir},
    }
    overrides = [f"{name}={json.dumps(value)}" for name, value in request.settings.items()]
    return Settings(**with_overrides(values, overrides))


def _shape(request: ToolRequest) -> Json:
    """Returns the settings of an adapter directory's LoRA; of any other model none."""
    path = Path(request.model).expanduser() / ADAPTER_CONFIG
    if not path.is_file():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    names = sorted(config["target_modules"])
    return {
        "rank": config["r"],
        "alpha": float(config["lora_alpha"]),
        "target_modules": names,
        "use_rslora": bool(config.get("use_rslora")),
    }


def _train(settings: Settings) -> Json:
    from agentpeft.launch.run.run_loop import run_session
    from agentpeft.launch.run.stop_signals import StopSignals

    run_dir = make_run_dir(settings)
    with lock_run(run_dir), log_to(run_dir):
        summary = run_session(Start(settings, run_dir), run_dir, None, StopSignals())
    for named in (summary, summary["best"]):
        if named is not None:
            named["adapter"] = str(Path(named["adapter"]).absolute())
    return {"run": str(run_dir), **summary}


def _evaluate(request: ToolRequest, settings: Settings) -> Json:
    from agentpeft.launch.evaluating.contest import evaluate
    from agentpeft.launch.evaluating.players import Contestant, Methods

    kind: Literal["adapter", "base"] = "adapter" if "target_modules" in _shape(request) else "base"
    output = output_base(Path(request.output_dir)) / "evaluations" / str(time.time_ns())
    summary = evaluate(settings, [Contestant("model", kind, request.model)], Methods(), output)
    return {"output": str(output), **summary["policies"]["model"]}


def _load_dataset(request: ToolRequest) -> Json:
    """Writes the rows and returns where, how many, and the first one."""
    with closing(make_text_env(request.environment, request.environment_kwargs())) as env:
        source = env.task_source
        if not isinstance(source, Taskset):
            source = Taskset.generate(source, request.max_samples, seed=0)
        rows = [_to_row(env, task, request.format) for task in source[: request.max_samples]]
    path = output_base(Path(request.output_dir)) / "datasets" / f"{time.time_ns()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_file(path, "".join(lines).encode())
    return {"path": str(path), "num_examples": len(rows), "example": rows[0]}


def _to_row(env: TextEnv[Task], task: Task, form: str) -> Json:
    """Returns a prompt with its task, or the oracle's conversation."""
    messages = [{"role": "user", "content": env.reset(options={"task": task})[0]}]
    if form == "rl":
        return {"prompt": messages, "task_id": task.task_id, "skills": list(task.skills)}
    actions = list(env.oracle_actions(task))
    for action, result in zip(actions, play_actions(env, actions, read_any_reward), strict=False):
        messages.append({"role": "assistant", "content": action})
        messages.append({"role": "user", "content": result.observation})
    return {"messages": messages[:-1]}


class _Completion(BaseModel):
    task_id: str
    actions: list[str]


def _score(environment: EnvironmentSettings, completions: Sequence[Mapping[str, Any]]) -> Json:
    with closing(make_text_env(environment.id, environment.kwargs)) as env:
        scored = [_play(env, _Completion(**completion)) for completion in completions]
    if not scored:
        raise SettingsError("no completions to score")
    rewards, outcomes = zip(*scored, strict=True)
    spread = {"min": min(rewards), "max": max(rewards), "std": pstdev(rewards)}
    rate = fmean(outcome is Outcome.SUCCESS for outcome in outcomes)
    own = {"rewards": rewards, "outcomes": outcomes, "mean": fmean(rewards)}
    return {**own, **spread, "success_rate": rate}


def _as_it_is(reward: object) -> float:
    return float(reward)  # type: ignore[arg-type]


def _play(env: TextEnv[Task], completion: _Completion) -> tuple[float, Outcome]:
    env.reset(options={"task": completion.task_id})
    results = play_actions(env, map(find_action, completion.actions), _as_it_is)
    return sum((result.reward for result in results), 0.0), env.outcome
