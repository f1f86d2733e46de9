"""Plays an environment's tasks for an agent that calls tools, over MCP's standard input and output.

```sh
agentpeft mcp AgentPEFT/DBBench-v0 split=test --num-tasks 20 --results results.jsonl
```

An agent calls `next_task`, which tells it what is asked, then the environment's own tools until the
task is over. It is never told of outcomes and rewards; `--results` writes them, a line for each
episode. One that goes on to the next task, or goes away, ends as by an invalid action.

Exit status: 0 the client has gone; 1 the environment failed, or the file cannot be written; 2
wrong settings.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

from typer import Argument, Option

from agentpeft.apps.drivers.tool_episode import ToolEpisode, tool_kwargs
from agentpeft.apps.training_tool.mcp_tools import (
    Json,
    Report,
    check_mcp,
    describe_tool,
    serve_tools,
)
from agentpeft.envs import Outcome
from agentpeft.envs.core.errors import check_count
from agentpeft.envs.core.spaces import to_utf8
from agentpeft.envs.tools.tool_table import ToolCall, find_tools
from agentpeft.launch.run.command_line import (
    FAILURES,
    WRONG,
    CommandLine,
    read_env_kwargs,
    say,
)
from agentpeft.launch.run.standard_streams import reserved_stdout
from agentpeft.policies.rollout.environments import Env, EnvPool

NEXT_TASK = "next_task"
_ABOUT_NEXT = "Begins the next task, and returns what it asks. A task that is not over is given up."
_NO_TASK = f"No task has begun; call {NEXT_TASK}."
_NO_MORE = "There are no more tasks."
main = CommandLine()


@main.add(help=__doc__)
def mcp(
    env_id: Annotated[str, Argument(metavar="ENV_ID", help="The environment.")],
    words: Annotated[list[str] | None, Argument(metavar="KEY=VALUE", help="Its arguments.")] = None,
    *,
    seed: Annotated[int, Option(min=0, help="Which tasks are played.")] = 0,
    num_tasks: Annotated[int | None, Option(help="After so many there are no more.")] = None,
    results: Annotated[Path | None, Option(help="File to which episodes are added.")] = None,
) -> int:
    """Serves until standard input ends. Raises: SettingsError, DataError, EnvFault, OSError."""
    if num_tasks is not None:
        check_count("--num-tasks", num_tasks)
    kwargs = read_env_kwargs(env_id, words or [])
    check_mcp()
    make = partial(ToolSession, env_id, kwargs, seed, num_tasks, results)
    with reserved_stdout() as lines, closing(make()) as session:
        asyncio.run(_serve(session, lines))
    return 0


class ToolSession:
    """An agent's tasks, one after the other; each call is one of a tool of the present one."""

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        seed: int,
        num_tasks: int | None,
        results: Path | None,
    ) -> None:
        """`num_tasks` None: without end. Raises: SettingsError, DataError, EnvFault, OSError."""
        self.env_id, self.tools = env_id, find_tools(env_id)
        self._pool = EnvPool(env_id, tool_kwargs(env_id, kwargs), (seed,))
        self._num_tasks, self._position = num_tasks, 0
        self._results = results.open("a", encoding="utf-8") if results else None
        self._env: Env | None = None
        self._episode: ToolEpisode | None = None
        self._task_id = ""

    def call(self, name: str, arguments: object) -> str:
        """Returns what a call is answered. Raises: EnvFault, and then the task is over."""
        if name == NEXT_TASK:
            return self._begin_next()
        if self._episode is None:
            return _NO_TASK
        was_over = self._episode.is_over
        try:
            return self._episode.call(ToolCall(name, arguments))
        finally:
            if self._episode.is_over and not was_over:
                self._write(self._episode.outcome, self._episode.episode_return)

    def close(self) -> None:
        """Ends the present task and frees what is held."""
        self._give_up()
        self._pool.close()
        if self._results:
            self._results.close()

    def _begin_next(self) -> str:
        self._give_up()
        if self._position == self._num_tasks:
            return _NO_MORE
        task = self._pool.task_at(self._position)
        self._env, prompt = self._pool.begin(self._position, task)
        self._position += 1
        self._task_id, self._episode = task.task_id, ToolEpisode(self._env)
        return prompt

    def _give_up(self) -> None:
        env, episode = self._env, self._episode
        self._env = self._episode = None
        if env is None or episode is None:
            return
        if not episode.is_over:
            self._write(Outcome.INVALID_ACTION, episode.return_if_stopped())
        if episode.fault is None:
            self._pool.give_back(env)
        else:
            self._pool.discard(env)

    def _write(self, outcome: Outcome, episode_return: float) -> None:
        if self._results:
            line = {"task_id": self._task_id, "outcome": outcome, "return": episode_return}
            self._results.write(json.dumps(line) + "\n")
            self._results.flush()


async def _serve(session: ToolSession, lines: TextIO) -> None:
    """Answers what comes on standard input until it ends.

    Calls run in one thread of their own, so that a slow one delays no ping. A malformed call is a
    turn, too.
    """
    nothing = {"type": "object", "properties": {}}
    tools = [describe_tool(NEXT_TASK, _ABOUT_NEXT, nothing)]
    tools += [describe_tool(tool.name, tool.description, tool.schema) for tool in session.tools]
    with ThreadPoolExecutor(1) as thread:

        async def call(name: str, arguments: Json, _: Report) -> tuple[str, bool]:
            play = partial(session.call, name, arguments)
            try:
                answer = await asyncio.get_running_loop().run_in_executor(thread, play)
            except (*FAILURES, *WRONG, OSError) as error:
                return to_utf8(say(error)), True
            return to_utf8(answer), False

        instructions = f"Begin with {NEXT_TASK}."
        await serve_tools(tools, call, instructions=instructions, stdout=lines)


if __name__ == "__main__":
    sys.exit(main())
