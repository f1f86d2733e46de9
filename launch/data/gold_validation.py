"""Plays every gold solution of a task file through an environment and says which fail, and why."""

import inspect
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentpeft.envs import DataError, EnvFault, Outcome, SettingsError, Task, Taskset, TextEnv
from agentpeft.envs.db_bench.actions import answer_action
from agentpeft.envs.db_bench.env import DBBenchEnv
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.os_interaction.actions import finish_action
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.tasks import OSTask
from agentpeft.envs.registration import find_creator
from agentpeft.launch.run.ending import finish
from agentpeft.launch.run.run_folder import as_word
from agentpeft.policies.rollout.environments import call_environment
from agentpeft.policies.rollout.scripted_play import make_text_env, play_actions, read_any_reward


def validate_gold(
    path: Path, env_id: str, kwargs: Mapping[str, Any], *, as_json: bool = False
) -> int:
    """Plays every gold solution of a file; prints which fail, and ends as commands do (`finish`).

    `kwargs` are the environment's, but `data`. Returns 1 where one fails, else 0.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file")
    with closing(_make_env(env_id, {"data": str(path), **kwargs})) as env:
        if not isinstance(env.task_source, Taskset):
            raise SettingsError(f"{env_id} does not read its tasks from {path}")
        failed = []
        for task in env.task_source:
            problem = _find_problem(env, task)
            if problem:
                failed.append(task.task_id)
                print(f"{task.task_id}: {problem}")
            elif note := _check_md5(env, task) or _check_idle(env, task):
                print(f"{task.task_id}: {note}")
        num_tasks = len(env.task_source)
    num_right = num_tasks - len(failed)
    data = f"environment.kwargs.data={as_word(path)}"
    finish(
        {"tasks": num_tasks, "succeeded": num_right, "failed": failed},
        f"{num_right} of {num_tasks} gold solutions succeed",
        f"next: agentpeft train CONFIG environment.id={env_id} {data}",
        as_json=as_json,
    )
    return 1 if failed else 0


def _make_env(env_id: str, settings: Mapping[str, Any]) -> TextEnv[Task]:
    try:
        return make_text_env(env_id, settings)
    except SettingsError:
        if _takes_data(env_id):
            raise
        problem = "it has no setting 'data', so it reads no files"
        raise SettingsError(f"{env_id}: {problem}") from None


def _takes_data(env_id: str) -> bool:
    creator: Any = find_creator(env_id)
    return creator is None or "data" in inspect.signature(creator).parameters


def _find_problem(env: TextEnv[Task], task: Task) -> str | None:
    """Returns why a task's gold solution does not succeed; None if it does."""
    try:
        return _play_gold(env, task) or _check_label(env, task)
    except DataError as error:
        return str(error)
    except EnvFault as fault:
        if isinstance(fault.__cause__, DataError):  # the step that graded it
            return str(fault.__cause__)
        raise


def _play_gold(env: TextEnv[Task], task: Task) -> str | None:
    env.reset(options={"task": task})
    results = play_actions(env, env.oracle_actions(task), read_any_reward)
    if env.outcome is Outcome.SUCCESS:
        return None
    has_none = isinstance(task, OSTask) and task.gold is None
    problem = "has no gold solution; it" if has_none else "the gold solution"
    problem += f" ends in {env.outcome.value}"
    observation = next((r.observation for r in reversed(results) if r.observation), "")
    if isinstance(env, OSInteractionEnv) and env.outcome is Outcome.FAILURE:
        problem += f": {env.mistake}"
        if not observation:
            return problem
    return f"{problem}, after {observation[:200]!r}"


def _check_label(env: TextEnv[Task], task: Task) -> str | None:
    """Returns how the label differs from what the gold SQL gives, where there are both."""
    if not isinstance(env, DBBenchEnv) or not isinstance(task, DBBenchTask):
        return None
    if task.label is None or task.gold_sql is None:
        return None
    rows = env.grader.gold_label(replace(task, label=None))
    if env.grader.is_right_answer(task, str(list(rows))):
        return None
    return f"the gold SQL gives {list(rows)!r:.200}, the label is {list(task.label)!r:.200}"


def _check_md5(env: TextEnv[Task], task: Task) -> str | None:
    """Returns a note where a changed table's hash is not the one that the data give."""
    if not isinstance(env, DBBenchEnv) or not isinstance(task, DBBenchTask) or task.md5 is None:
        return None
    md5 = env.grader.gold_md5(task)
    return None if md5 == task.md5 else f"note: its md5 is {task.md5}, the gold SQL gives {md5}"


def _check_idle(env: TextEnv[Task], task: Task) -> str | None:
    """Returns a note where an agent that only says it is done succeeds too."""
    is_change = isinstance(task, DBBenchTask) and task.is_write
    if not is_change and not (isinstance(task, OSTask) and not task.wants_answer):
        return None
    action = answer_action("done") if is_change else finish_action(None)
    call_environment(lambda: env.reset(options={"task": task}))
    call_environment(lambda: env.step(action))
    if env.outcome is not Outcome.SUCCESS:
        return None
    reason = ", since the gold SQL changes nothing" if is_change else ""
    return f"note: doing nothing succeeds too{reason}"
