"""An environment's tasks as a `verifiers` taskset (0.4), with the harness that plays them.

Its id is this module's. The harness runs in this process and plays by tool calls through the
endpoint at which verifiers records a rollout, so that nothing of it needs a sandbox, `uv` or a
cloud; the suite's `info` and the tasks' ids stay out of what a model reads.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import verifiers.v1 as vf
from openai import OpenAI
from pydantic import Field

from agentpeft.apps.drivers.openai_loop import play_by_tools
from agentpeft.apps.drivers.tool_episode import tool_kwargs
from agentpeft.policies.rollout.environments import EnvPool

__all__ = ["GymTaskset", "ToolHarness"]


class GymData(vf.TaskData):  # type: ignore[misc]
    """Which task is played: the one at a position of an environment with a seed."""

    game: str
    env_kwargs: dict[str, Any]
    seed: int
    position: int


class GymTask(vf.Task[GymData]):  # type: ignore[misc]
    """Has no reward of its own: the harness records the episode's."""


class GymTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """`game` is the suite's id."""

    game: str = "AgentPEFT/DBBench-v0"
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    num_tasks: int = 100


class GymTaskset(vf.Taskset[GymTask, GymTasksetConfig]):  # type: ignore[misc]
    """The first `num_tasks` tasks of an environment; of a file that has fewer, each once."""

    def load(self) -> Iterator[GymTask]:
        """Yields the tasks."""
        own = {name: getattr(self.config, name) for name in ("game", "env_kwargs", "seed")}
        kwargs = tool_kwargs(self.config.game, self.config.env_kwargs)
        with closing(EnvPool(self.config.game, kwargs, (self.config.seed,))) as pool:
            num_tasks = pool.count_tasks(self.config.num_tasks)
        for position in range(num_tasks):
            yield GymTask(GymData(prompt="", position=position, **own), self.config.task)


class ToolHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Plays the task's episode in a thread, and records what it earns."""

    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, *_: Any, **__: Any
    ) -> vf.ProgramResult:
        """Returns at the episode's end. Raises: EnvFault, and what the client raises."""
        del runtime
        row: GymData = trace.task.data
        pool = EnvPool(row.game, tool_kwargs(row.game, row.env_kwargs), (row.seed,))
        client = OpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        try:
            env, prompt = pool.begin(row.position, pool.task_at(row.position))
            episode = await asyncio.to_thread(play_by_tools, client, ctx.model, env, prompt)
            trace.record_reward("episode_return", episode.return_if_stopped())
            pool.give_back(env)
        finally:
            pool.close()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
