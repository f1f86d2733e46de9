"""`make_inspect_task`: an environment's tasks as an Inspect AI evaluation, read with 0.3."""

from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageTool, ChatMessageUser, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo, ToolParams

from agentpeft.apps.drivers.tool_episode import ToolEpisode, tool_kwargs
from agentpeft.envs.tools.tool_table import ToolCall
from agentpeft.policies.rollout.environments import EnvPool


def make_inspect_task(env_id: str, num_tasks: int, seed: int = 0, **kwargs: Any) -> Task:
    """Returns the evaluation of an environment's first tasks, which a model plays by tools.

    Of a file that has fewer than `num_tasks`, each is played once. A score is the episode's return.
    Raises: SettingsError, DataError.
    """
    pool = EnvPool(env_id, tool_kwargs(env_id, kwargs), (seed,))
    positions = range(pool.count_tasks(num_tasks))
    samples = [Sample(input=f"task {i}", id=i, metadata={"position": i}) for i in positions]
    return Task(MemoryDataset(samples, env_id), solver=_play(pool), scorer=_outcome())


@solver  # type: ignore[untyped-decorator]
def _play(pool: EnvPool) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 (the API's)
        position = state.metadata["position"]
        env, prompt = pool.begin(position, pool.task_at(position))
        episode = ToolEpisode(env)
        tools = [
            ToolInfo(name=t.name, description=t.description, parameters=ToolParams(**t.schema))
            for t in episode.tools
        ]
        state.messages = [ChatMessageUser(content=prompt)]
        while not episode.is_over:
            state.output = await get_model().generate(state.messages, tools)
            state.messages.append(state.output.message)
            if not state.output.message.tool_calls:
                break
            for call in state.output.message.tool_calls:
                arguments = call.parse_error or call.arguments
                said = episode.call(ToolCall(call.function, arguments))
                message = ChatMessageTool(
                    content=said, tool_call_id=call.id, function=call.function
                )
                state.messages.append(message)
        outcome, episode_return = str(episode.outcome), episode.return_if_stopped()
        state.metadata |= {"outcome": outcome, "return": episode_return}
        pool.give_back(env)
        return state

    return solve


@scorer(metrics=[mean(), stderr(), accuracy()])  # type: ignore[untyped-decorator]
def _outcome() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 (the API's)
        outcome = state.metadata["outcome"]
        return Score(value=state.metadata["return"], answer=outcome, explanation=outcome)

    return score
