"""A LangGraph agent that acts in the environment, turn by turn, until the episode is over.

agentpeft gateway quickstart --command "python examples/agents/langgraph_agent.py"
"""

import os
import sys
from typing import Any

import httpx
from langgraph.graph import END, START, StateGraph
from openai import OpenAI

State = dict[str, Any]
client = OpenAI()
headers = {"Authorization": f"Bearer {client.api_key}"}


def speak(state: State) -> State:
    """Asks the model for the next turn."""
    completion = client.chat.completions.create(model="policy", messages=state["messages"])
    said = {"role": "assistant", "content": completion.choices[0].message.content}
    return {"messages": [*state["messages"], said], "is_over": False}


def act(state: State) -> State:
    """Takes what the model said as an action, and hears what the environment answers."""
    action = {"action": state["messages"][-1]["content"]}
    url = os.environ["AGENTPEFT_ENV_URL"] + "/step"
    result = httpx.post(url, json=action, headers=headers, timeout=60).json()
    heard = {"role": "user", "content": result["observation"]}
    return {"messages": [*state["messages"], heard], "is_over": result["is_over"]}


graph = StateGraph(State)
graph.add_node("speak", speak)
graph.add_node("act", act)
graph.add_edge(START, "speak")
graph.add_edge("speak", "act")
graph.add_conditional_edges("act", lambda state: END if state["is_over"] else "speak")
task = {"role": "user", "content": sys.stdin.read()}
graph.compile().invoke({"messages": [task]}, {"recursion_limit": 200})
