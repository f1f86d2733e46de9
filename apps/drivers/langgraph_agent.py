"""`make_graph`: an environment's episode as a LangGraph agent, read with version 1.2."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agentpeft.apps.drivers.tool_episode import ToolEpisode
from agentpeft.envs.tools.tool_table import ToolCall

Update = dict[str, list[AnyMessage]]


def make_graph(model: BaseChatModel, episode: ToolEpisode) -> CompiledStateGraph[Any]:
    """Returns the graph of one episode: the model speaks, its calls are played, and so on.

    Invoke it with the prompt as its message. It ends with the episode, or at a message without a
    call, and raises EnvFault. The calls of a message are played one after another, each a turn: in
    LangGraph's own `ToolNode` they would run side by side, and a call of a tool that there is not
    would cost nothing.
    """
    caller = model.bind_tools(episode.tools.to_openai())

    def speak(state: MessagesState) -> Update:
        return {"messages": [caller.invoke(state["messages"])]}

    def play(state: MessagesState) -> Update:
        answers: list[AnyMessage] = []
        for each in _calls_of(state["messages"][-1]):
            said = episode.call(ToolCall(each["name"], each["args"]))
            answers.append(ToolMessage(said, tool_call_id=each["id"] or ""))
        return {"messages": answers}

    def is_calling(state: MessagesState) -> str:
        return "play" if _calls_of(state["messages"][-1]) else END

    def is_over(_: MessagesState) -> str:
        return END if episode.is_over else "speak"

    graph = StateGraph(MessagesState)
    graph.add_node("speak", speak)
    graph.add_node("play", play)
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", is_calling, ["play", END])
    graph.add_conditional_edges("play", is_over, ["speak", END])
    return graph.compile()


def _calls_of(message: AnyMessage) -> list[Any]:
    """Returns the calls of a message, those last whose arguments are no JSON, as text."""
    is_ai = isinstance(message, AIMessage)
    return [*message.tool_calls, *message.invalid_tool_calls] if is_ai else []
