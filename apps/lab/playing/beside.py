"""One task, played by a person, then by the oracle and a policy: `play`, and a server's page."""

from typing import Any, Protocol

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from agentpeft.apps.lab.playing.episode_view import ShownEpisode, ShownTurn, show_beside, show_text
from agentpeft.apps.lab.playing.typed_agent import TypedAgent
from agentpeft.apps.lab.run_view import clean
from agentpeft.envs import SettingsError, Task, TextEnv
from agentpeft.policies.rollout.environments import call_environment
from agentpeft.policies.rollout.play import play_episode
from agentpeft.policies.rollout.scripted_play import begin, play_actions, run_without_waiting


class OtherPlayer(Protocol):
    """Who plays the task after the person and the oracle."""

    def play(self, env: TextEnv[Any], task: Task) -> ShownEpisode:
        """Plays an episode of a task. Raises: EnvFault, EngineError."""
        ...


def play(
    console: Console, env: TextEnv[Any], task_id: str | None, seed: int, policy: OtherPlayer | None
) -> None:
    """Plays one episode with a person, then the same task with the others, and shows all of them.

    A person who leaves is shown no solution. Raises: UnknownTaskError, EnvFault, EngineError.
    """
    options = None if task_id is None else {"task": task_id}
    prompt, _ = call_environment(lambda: env.reset(seed=seed, options=options))
    task, name = env.task, env.spec.id if env.spec else type(env).__name__
    drawn = f"  seed {seed}" if task_id is None else ""
    console.print(Rule(Text(f"{name}  task {clean(task.task_id)}{drawn}")), show_text(prompt))
    agent = TypedAgent(console, task, max_turns=env.config.max_turns)
    outcome = run_without_waiting(play_episode(env, agent))
    if outcome is None:
        console.print(f"left; turns played: {len(agent.results)}")
        return
    own = ShownEpisode.of_results("you", agent.actions, agent.results)
    console.print(own.end, Rule("the same task"))
    console.print(show_beside([own, *play_others(env, task, policy)], console))


def play_others(
    env: TextEnv[Any], task: Task, policy: OtherPlayer | None, *, has_oracle: bool = True
) -> list[ShownEpisode]:
    """Returns the oracle's episode of a task, unless it may not be shown, and the policy's if any.

    Raises: EnvFault, EngineError.
    """
    oracle = [_play_oracle(env, task)] if has_oracle else []
    return [*oracle, policy.play(env, task)] if policy else oracle


def _play_oracle(env: TextEnv[Any], task: Task) -> ShownEpisode:
    """Returns the oracle's episode; of a server that shows none, what it says of that."""
    try:
        actions = call_environment(lambda: env.oracle_actions(task))
    except SettingsError as error:
        return ShownEpisode("the oracle", (ShownTurn(str(error), None, None),), "unknown", 0.0)
    begin(env, task)
    results = play_actions(env, actions)
    return ShownEpisode.of_results("the oracle", actions, results)
