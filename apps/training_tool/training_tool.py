"""Training as a function tool of an agent: one callable, its JSON schema, a JSON string back.

`run({...})` takes what `TOOL_SCHEMA` says (OpenAI's form, which all tool-calling agents take), and
`training_tool(**arguments)` the same. Neither raises for a wrong argument: `status` is then
"error", with a message.
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
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.types import PositiveInt

from agentpeft.apps.training_tool.dataset_rows import RowFormat, make_row, open_chat
from agentpeft.envs import Outcome, RewardConfig, SettingsError, Task, Taskset, TextEnv
from agentpeft.envs.gsm8k.tasks import HUB, HUB_DATASET
from agentpeft.envs.system.whole_files import write_file
from agentpeft.launch.data.task_files import with_task_files
from agentpeft.launch.run.command_line import FAILURES, WRONG, say
from agentpeft.launch.run.run_folder import Start, lock_run, log_to, make_run_dir, output_base
from agentpeft.policies.delivery.adapter_files import MODEL_CONFIG
from agentpeft.policies.delivery.version import ADAPTER_CONFIG
from agentpeft.policies.rollout.scripted_play import make_text_env, play_actions
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.settings.training import AlgorithmName
from agentpeft.policies.thoughts import find_action

Reward: TypeAlias = str | dict[str, Any]
Json: TypeAlias = dict[str, Any]
_NUM_EVALUATED = 100
_EXPERIMENT = "training_tool"
_GSM8K = "AgentPEFT/GSM8K-v0"


class ToolRequest(BaseModel):
    """Trains language models by LoRA on text environments, evaluates them, and shows their data."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    action: Literal["train", "load_dataset", "create_reward", "evaluate"] = "train"
    algorithm: AlgorithmName = "grpo"
    model: str = Field(
        "tiny",
        description="built-in 'tiny', hub id, folder, adapter directory, or the output_dir of an "
        "earlier call, whose newest model it then is",
    )
    model_name: str | None = Field(None, description="another name of `model`: give one of them")
    environment: str = Field("AgentPEFT/Arithmetic-v0", description="a registered text environment")
    dataset: str | None = Field(
        None,
        description="its task file or folder, or 'hub'. 'gsm8k' is AgentPEFT/GSM8K-v0 with word "
        "problems from templates, 'openai/gsm8k' the data set of that name from the hub",
    )
    split: Literal["train", "test"] | None = None
    format: RowFormat = Field("sft", description="of load_dataset's rows")
    apply_chat_template: bool = Field(
        False, description="load_dataset's rows are texts, by the model's chat template"
    )
    reward: Reward | None = Field(
        None, description="preset (exact_match, db, os) or fields, as create_reward returns them"
    )
    max_samples: PositiveInt = 100
    num_epochs: PositiveInt = 1
    batch_size: PositiveInt = Field(8, description="tasks per update")
    output_dir: str = "outputs"
    use_lora: bool = True
    settings: dict[str, Any] = Field({}, description="more settings, by dotted names")

    @model_validator(mode="after")
    def _settle_names(self) -> Self:
        """Gives `model` and `environment` the value of their other names. Raises: ValueError."""
        given = frozenset(self.model_fields_set)
        if self.model_name is not None:
            if "model" in given:
                raise ValueError(f"model and model_name are one setting, got {self.model!r} too")
            self.model = self.model_name
        if self.dataset in {"gsm8k", HUB_DATASET}:
            if "environment" in given and self.environment != _GSM8K:
                raise ValueError(f"dataset {self.dataset!r} is of {_GSM8K}: leave out environment")
            self.environment, self.dataset = _GSM8K, HUB if self.dataset == HUB_DATASET else None
            self.split = self.split or ("test" if self.action == "evaluate" else "train")
        return self

    def environment_kwargs(self) -> Json:
        """Returns the environment's keyword arguments."""
        own = {"data": self.dataset, "split": self.split, "reward": self.reward}
        return {name: value for name, value in own.items() if value is not None}


class _Completion(BaseModel):
    """A task, and what an agent answered in each of its turns."""

    task_id: str
    actions: list[str]


class RewardsRequest(BaseModel):
    """Scores completions of an environment's tasks: rewards, outcomes, statistics."""

    model_config = ConfigDict(extra="forbid")

    completions: list[_Completion] = Field(description="tasks as load_dataset names them")
    environment: str = Field("AgentPEFT/Arithmetic-v0", description="a registered text environment")
    reward: Reward | None = Field(None, description="preset or fields, as create_reward's")
    environment_kwargs: dict[str, Any] = Field({}, description="the environment's arguments")


def _schema_of(name: str, request: type[BaseModel]) -> Json:
    parameters = request.model_json_schema()
    function = {"name": name, "description": request.__doc__, "parameters": parameters}
    return {"type": "function", "function": function}


TOOL_SCHEMA = _schema_of("training_tool", ToolRequest)
REWARDS_SCHEMA = _schema_of("evaluate_rewards", RewardsRequest)


def run(arguments: Mapping[str, Any] | str) -> str:
    """Does what `ToolRequest` says, in this process; returns JSON with `status` "ok" or "error".

    `arguments` may be JSON, as an agent's function call has them. Standard output is left to the
    caller: progress goes to standard error.
    """
    return _answer(lambda: _do(ToolRequest(**_read(arguments))))


def training_tool(**arguments: Any) -> str:
    """Does `run(arguments)`."""
    return run(arguments)


def run_rewards(arguments: Mapping[str, Any] | str) -> str:
    """Does what `RewardsRequest` says; returns JSON with each completion's reward and outcome.

    Of a text with thoughts, the action is what follows the last `</think>`.
    """
    return _answer(lambda: _score(RewardsRequest(**_read(arguments))))


def evaluate_rewards(
    completions: Sequence[Mapping[str, Any]],
    environment: str = "AgentPEFT/Arithmetic-v0",
    reward: Reward | None = None,
    **environment_kwargs: Any,
) -> str:
    """Does `run_rewards` with these arguments; the last are the environment's own.

    A completion is `{"task_id": …, "actions": [text, …]}`, as `load_dataset` names tasks.
    """
    own = {"environment_kwargs": environment_kwargs, "reward": reward}
    return run_rewards({"completions": completions, "environment": environment, **own})


def _read(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Raises: SettingsError for what is no JSON object."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except ValueError as error:
        raise SettingsError(f"the arguments are not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"the arguments must be an object, got {arguments!r:.60}")
    return found


def _answer(do: Callable[[], Json]) -> str:
    try:
        with redirect_stdout(sys.stderr):
            result = {"status": "ok", **do()}
    except ValidationError as error:
        result = {"status": "error", "message": _say_first(error)}
    except (*WRONG, *FAILURES, OSError) as error:
        result = {"status": "error", "message": say(error)}
    return json.dumps(result, ensure_ascii=False)


def _say_first(error: ValidationError) -> str:
    """Returns the first fault: of one argument with what was got, or of several together."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    return f"{'.'.join(map(str, first['loc']))}: {message}, got {first['input']!r:.60}"


def _do(request: ToolRequest) -> Json:
    if request.action == "create_reward":
        reward = asdict(RewardConfig.build(request.reward or "exact_match"))
        return {"reward": {name: value for name, value in reward.items() if value is not None}}
    if request.action == "load_dataset":
        return _load_dataset(request)
    settings = with_task_files(_to_settings(request))
    return _train(settings) if request.action == "train" else _evaluate(request, settings)


def _to_settings(request: ToolRequest) -> Settings:
    """Returns a run's settings; an adapter directory brings its shape. Raises: SettingsError."""
    own, is_training = request.environment_kwargs(), request.action == "train"
    model = _find_model(request.model)
    held_out = {"split": "test"} if request.split == "train" else {}
    num_tasks = min(request.max_samples, _NUM_EVALUATED)
    if is_training and request.dataset is not None and not held_out:
        num_tasks = 0  # it would be the training file
    num_updates = math.ceil(request.max_samples * request.num_epochs / request.batch_size)
    training = {"num_iterations": num_updates, "num_groups": request.batch_size}
    values: Json = {
        "experiment": _EXPERIMENT,
        "environment": {"id": request.environment, "kwargs": own if is_training else {}},
        "model": {"name": model},
        "lora": _shape(model) if request.use_lora else {"rank": 0},
        "env_runners": {"num_env_runners": 0},
        "training": {"algorithm": request.algorithm, **training},
        "evaluation": {"num_tasks": num_tasks, "env_kwargs": held_out if is_training else own},
        "output": {"dir": request.output_dir},
    }
    if not request.use_lora and request.settings.get("lora.rank"):
        raise SettingsError("use_lora is false: leave out lora.rank, or set use_lora")
    overrides = [f"{name}={json.dumps(value)}" for name, value in request.settings.items()]
    return Settings(**with_overrides(values, overrides))


def _find_model(name: str) -> str:
    """Returns a model's name; of an `output_dir` of `train`, the newest run's newest weights.

    Raises: SettingsError where it has no run with a checkpoint.
    """
    folder = Path(name).expanduser()
    runs = output_base(folder) / _EXPERIMENT
    if not runs.is_dir() or any(
        (folder / file).is_file() for file in (ADAPTER_CONFIG, MODEL_CONFIG)
    ):
        return name
    saved = list(runs.glob("*/checkpoints/checkpoint-*/adapter"))
    if not saved:
        raise SettingsError(f"model {name!r}: no run in {runs} has saved anything")
    return str(max(saved, key=lambda path: path.stat().st_mtime_ns))


def _shape(model: str) -> Json:
    """Returns the settings of an adapter directory's LoRA; of any other model none."""
    path = Path(model).expanduser() / ADAPTER_CONFIG
    if not path.is_file():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    targets, rank = config["target_modules"], config["r"]
    factor = rank**0.5 if config.get("use_rslora") else 1.0  # of the plain adapter that it equals
    return {
        "rank": rank,
        "alpha": factor * config["lora_alpha"],
        "target_modules": "all-linear" if isinstance(targets, str) else sorted(targets),
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

    name = settings.model.name
    kind: Literal["adapter", "base"] = "adapter" if "target_modules" in _shape(name) else "base"
    output = output_base(Path(request.output_dir)) / "evaluations" / str(time.time_ns())
    summary = evaluate(settings, [Contestant("model", kind, name)], Methods(), output)
    return {"output": str(output), **summary["policies"]["model"]}


def _load_dataset(request: ToolRequest) -> Json:
    """Writes the rows and returns where, how many, and the first one."""
    chat = open_chat(_to_settings(request)) if request.apply_chat_template else None
    with closing(make_text_env(request.environment, request.environment_kwargs())) as env:
        source = env.task_source
        if not isinstance(source, Taskset):
            source = Taskset.generate(source, request.max_samples, seed=0)
        tasks = source[: request.max_samples]
        rows = [make_row(env, task, request.format, chat) for task in tasks]
    path = output_base(Path(request.output_dir)) / "datasets" / f"{time.time_ns()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_file(path, "".join(lines).encode())
    return {"path": str(path), "num_examples": len(rows), "example": rows[0]}


def _score(request: RewardsRequest) -> Json:
    kwargs = request.environment_kwargs
    own = kwargs if request.reward is None else {**kwargs, "reward": request.reward}
    with closing(make_text_env(request.environment, own)) as env:
        scored = [_play(env, completion) for completion in request.completions]
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
